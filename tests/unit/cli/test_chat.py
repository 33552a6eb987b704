import contextlib
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from opct.cli.chat import talk
from opct.data.reasoning import split_text
from opct.errors import ModelError
from tests.unit.cli.running import run


class Model:
    """Answers with the last message, its number of messages, and whether its training shows."""

    has_base = True
    renderer = SimpleNamespace(split=lambda prompt, text: split_text(text))

    def __init__(self, stop_reason: str = "stop", most: int = 99):
        self.stop_reason, self.most, self.on = stop_reason, most, True

    @contextlib.contextmanager
    def base(self):
        self.on = False
        yield self
        self.on = True

    def generation_defaults(self):
        return {"temperature": 0.2, "top_p": 0.9, "top_k": 50}

    def generate(self, prompts, *, seeds, max_completion_tokens, **sampling):
        [messages] = prompts
        if len(messages) > self.most:
            raise ModelError("The prompt is too long.")
        self.sampling = sampling
        text = f"[{messages[-1]['content']}] of {len(messages)}, {'trained' if self.on else 'untrained'}"
        return [SimpleNamespace(token_ids=text, stop_reason=self.stop_reason)]


@pytest.fixture
def type_lines(monkeypatch):
    def type_lines(*lines: str) -> None:
        left = iter(lines)

        def read(self, prompt="", **keywords):
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(Console, "input", read)

    return type_lines


@pytest.fixture
def say(type_lines):
    """Talk with these lines as the input; what was printed."""

    def say(model: Model, *lines: str) -> str:
        type_lines(*lines)
        out = io.StringIO()
        talk(model, Console(file=out, width=80), max_completion_tokens=5, sampling={"temperature": 0.0}, seed=0)
        return out.getvalue()

    return say


def test_a_model_is_loaded_and_sampled_as_settings_and_options_say(monkeypatch, type_lines, capsys):
    model, loaded = Model(), []
    monkeypatch.setattr("opct.models.self_test.self_test", lambda _, prompts: [f"{len(prompts[0][1])} turns"])
    monkeypatch.setattr("opct.models.from_run.load_policy", lambda _, **own: loaded.append(own) or model)
    for flags, sampling in (
        ((), {"temperature": 0.0}),
        (("--temperature", "0.7"), {"temperature": 0.7}),
        (("--generation-config", "--temperature", "1"), {"temperature": 1.0, "top_p": 0.9, "top_k": 50}),
    ):
        type_lines("hi", "/quit")
        assert run("chat", "runs/x", "device=cpu", *flags) == 0
        assert "warning: 3 turns" in capsys.readouterr().out
        assert model.sampling == sampling
        assert loaded.pop() == {"device": "cpu"}
    assert run("chat", "runs/x", "chat_template_kwargs={a: [") == 1


def test_turns_are_remembered_and_what_a_reply_holds_is_text(say):
    shown = say(Model(), "hi", "", "again", "\x1b]52;c;x\x07\x1b[2J")
    for part in ("model> [hi] of 1, trained", "model> [again] of 3, trained", r"[\x1b]52;c;x\x07\x1b[2J]"):
        assert part in shown
    assert "[cut" not in shown
    assert "[cut" in say(Model(stop_reason="length"), "hi")


def test_each_model_has_its_own_answers_to_the_same_questions(say):
    shown = say(Model(), "one", "two", "/base", "three", "/model", "/quit", "never")
    first, second, third = (
        shown.index(f"base> [{text}] of {n}, untrained") for text, n in [("one", 1), ("two", 3), ("three", 5)]
    )
    assert first < second < third < shown.index("model> [three] of 5, trained")
    assert "never" not in shown
    both = say(Model(), "one", "/both", "/new", "two", "/help")
    assert "model> [two] of 1" in both
    assert "base> [two] of 1" in both


def test_a_history_that_does_not_fit_the_context_does_not_end_the_chat(say):
    shown = say(Model(most=3), "one", "two", "three", "/new", "four")
    for part in ("[two] of 3", "/new", "[four] of 1"):
        assert part in shown
