import contextlib
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from opct.cli.app import main
from opct.cli.chat import talk
from opct.data.reasoning import split_text
from opct.errors import ModelError


class Model:
    """Answers with the last message, its number of messages, and whether its training shows."""

    def __init__(self, has_base: bool = True, stop_reason: str = "stop", most: int = 99):
        self.has_base, self.stop_reason, self.most, self.on = has_base, stop_reason, most, True

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

    renderer = SimpleNamespace(split=lambda prompt, text: split_text(text))


@pytest.fixture
def say(monkeypatch):
    """Talk with these lines as the input; what was printed."""

    def say(model: Model, *lines: str, width: int = 80) -> str:
        left = iter(lines)

        def read(self, prompt="", **keywords):
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(Console, "input", read)
        out = io.StringIO()
        talk(model, Console(file=out, width=width), max_completion_tokens=5, sampling={"temperature": 0.0}, seed=0)
        return out.getvalue()

    return say


def test_turns_are_remembered_and_markup_in_replies_is_text(say):
    shown = say(Model(), "hi", "", "again")
    for part in ("model> [hi] of 1, trained", "model> [again] of 3, trained"):
        assert part in shown


@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ([], {"temperature": 0.0}),
        (["--temperature", "0.7"], {"temperature": 0.7}),
        (["--generation-config"], {"temperature": 0.2, "top_p": 0.9, "top_k": 50}),
        (["--generation-config", "--temperature", "1"], {"temperature": 1.0, "top_p": 0.9, "top_k": 50}),
    ],
)
def test_a_model_is_loaded_and_sampled_as_the_options_say(monkeypatch, flags, sampling):
    model = Model()
    lines = iter(["hi", "/quit"])
    monkeypatch.setattr("opct.models.from_run.load_policy", lambda _: model)
    monkeypatch.setattr(Console, "input", lambda self, prompt="", **keywords: next(lines))
    with pytest.raises(SystemExit) as exit:
        main(["chat", "runs/x", *flags])
    assert exit.value.code == 0
    assert model.sampling == sampling


@pytest.mark.parametrize(
    ("word", "given", "code"),
    [
        ("chat_template_kwargs.enable_thinking=false", {"chat_template_kwargs": {"enable_thinking": False}}, 0),
        ("device=cpu", {"device": "cpu"}, 0),
        ("trust_remote_code=true", {"trust_remote_code": True}, 0),
        ("chat_template_kwargs={a: [", None, 1),
    ],
)
def test_settings_of_the_model_override_those_of_the_run(monkeypatch, word, given, code):
    loaded = []
    monkeypatch.setattr("opct.models.from_run.load_policy", lambda _, **own: loaded.append(own) or Model())
    monkeypatch.setattr(Console, "input", lambda *_, **keywords: "/quit")
    with pytest.raises(SystemExit) as exit:
        main(["chat", "runs/x", word])
    assert exit.value.code == code
    assert loaded == ([] if given is None else [given])


def test_control_characters_of_a_reply_are_visible(say):
    assert r"[\x1b]52;c;x\x07\x1b[2J]" in say(Model(), "\x1b]52;c;x\x07\x1b[2J")


def test_each_model_has_its_own_answers_to_the_same_questions(say):
    shown = say(Model(), "one", "two", "/base", "three", "/model", "/quit", "never")
    first, second, third = (
        shown.index(f"base> [{text}] of {n}, untrained") for text, n in [("one", 1), ("two", 3), ("three", 5)]
    )
    assert first < second < third < shown.index("model> [three] of 5, trained")
    assert "never" not in shown


def test_both_models_answer_and_new_starts_over(say):
    shown = say(Model(), "one", "/both", "/new", "two", "/help")
    assert "model> [two] of 1" in shown
    assert "base> [two] of 1" in shown


def test_a_cut_answer_is_marked(say):
    assert "[cut" in say(Model(stop_reason="length"), "hi")


def test_a_history_that_does_not_fit_the_context_does_not_end_the_chat(say):
    shown = say(Model(most=3), "one", "two", "three", "/new", "four")
    for part in ("[two] of 3", "/new", "[four] of 1"):
        assert part in shown
