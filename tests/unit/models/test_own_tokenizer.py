"""Stop tokens, and the tokenizer and chat template that an adapter brings."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers.utils import chat_template_utils

from opct.config.schema import ModelConfig
from opct.data.reasoning import Reasoning
from opct.data.render import Renderer
from opct.errors import ModelError
from opct.models.from_run import load_policy
from opct.models.loading import stop_tokens_of
from opct.models.policy import Policy
from opct.runs.run_dir import RunDir
from opct.training.setup import load_data
from opct.training.trainer import train
from tests.refusals import refused
from tests.templates import CHANNELS, DATED, NAMED_CHANNEL, OWN_MARKS, TWO_ENDS, tokenizer_of
from tests.tiny import CHAT_TEMPLATE, save_tiny, tiny_tokenizer
from tests.unit.models.test_adapters import PLACES, save_adapter
from tests.unit.training.conftest import NO_VALIDATION

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
USER = ({"role": "user", "content": "Hi"},)
OWN = CHAT_TEMPLATE.replace("assistant\n", "assistant (mine)\n")
SHORT = {"data": NO_VALIDATION, "rollout": {"max_completion_tokens": 2}}


@pytest.mark.parametrize(
    ("template", "configured", "expected"),
    [
        (CHAT_TEMPLATE, 2, {"<|im_end|>"}),
        (CHAT_TEMPLATE, 0, {"<|im_end|>", "<|endoftext|>"}),  # the configuration's, the tokenizer's and the template's
        (CHAT_TEMPLATE, [0, 77], {"<|im_end|>", "<|endoftext|>"}),  # 77 is ordinary text
        (CHANNELS, 0, {"<|return|>", "<|endoftext|>"}),  # not <|end|>, which it writes after its reasoning
        (OWN_MARKS, 0, {"<|endoftext|>"}),
        (TWO_ENDS, 0, {"<|end|>", "<|endoftext|>"}),
        (NAMED_CHANNEL, 0, {"<turn|>", "<|endoftext|>"}),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", 0, {"<|endoftext|>"}),
    ],
)
def test_stop_tokens(template: str, configured, expected: set[str]):
    tokenizer = tokenizer_of(template)
    if template != CHAT_TEMPLATE:
        tokenizer.eos_token = "<|endoftext|>"
    found = stop_tokens_of(Renderer(tokenizer), SimpleNamespace(eos_token_id=configured))
    assert set(tokenizer.convert_ids_to_tokens(sorted(found))) == expected


@pytest.mark.parametrize("files", ["tokenizer", "chat_template.jinja"])
def test_the_chat_template_of_an_adapter_is_used(make_config, tmp_path: Path, files: str):
    """In evaluation and chat (`load_policy`), and in a run that continues it, whose checkpoints keep it."""
    base = save_tiny(tmp_path / "base")
    adapter = tmp_path / "adapter"
    save_adapter(base, adapter)
    if files == "tokenizer":
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = OWN
        tokenizer.save_pretrained(adapter)
    else:
        (adapter / files).write_text(OWN)
    assert load_policy(str(adapter)).renderer.text(USER).endswith("assistant (mine)\n")
    assert not load_policy(str(base)).renderer.text(USER).endswith("(mine)\n")
    lora = {"r": 4, "alpha": 8, "target_modules": PLACES}
    config = make_config(max_steps=1, model={"name_or_path": str(base), "adapter": str(adapter)}, lora=lora, **SHORT)
    renderer = load_policy(str(adapter)).renderer
    assert all(r.prompt_ids == renderer.render(r.pair.prompt) for r in load_data(config).pairs)
    train(config)
    assert load_policy(config.output_dir).renderer.template_hash == renderer.template_hash


def test_an_adapter_without_a_template_has_that_of_its_base(tmp_path: Path):
    base = save_tiny(tmp_path / "base")
    adapter, tokenizer = tmp_path / "adapter", tiny_tokenizer()
    save_adapter(base, adapter)
    expected = load_policy(str(adapter)).renderer.template_hash
    tokenizer.chat_template = None
    tokenizer.save_pretrained(adapter)
    assert load_policy(str(adapter)).renderer.template_hash == expected


def test_new_tokens_without_embeddings_and_a_template_that_changes_are_refused(tmp_path: Path):
    base = save_tiny(tmp_path / "base")
    adapter, tokenizer = tmp_path / "adapter", tiny_tokenizer()
    save_adapter(base, adapter)
    tokenizer.add_tokens(["<|new|>"])
    tokenizer.save_pretrained(adapter)
    with refused(ModelError, "<|new|>"):
        load_policy(str(adapter))
    changing = save_with(tmp_path / "changing", "{{ range(9) | random }}" + CHAT_TEMPLATE)
    (changing / "model.safetensors").unlink()  # it is not read
    with refused(ModelError, changing):
        Policy.load(str(changing))


def save_with(folder: Path, template: str) -> Path:
    save_tiny(folder)
    tokenizer_of(template).save_pretrained(folder)
    return folder


def test_a_run_with_a_date_is_resumed_and_evaluated_on_another_day(make_config, tmp_path: Path, monkeypatch):
    """The same tokens and the same hash; and the base alone, on a third day, has the same prompts."""

    def on(day: str) -> None:
        monkeypatch.setattr(
            chat_template_utils, "datetime", SimpleNamespace(now=lambda: SimpleNamespace(strftime=lambda _: day))
        )

    folder = save_with(tmp_path / "m", DATED)
    on("Monday")
    config = make_config(max_steps=1, save_steps=1, model={"name_or_path": str(folder)}, **SHORT)
    train(config)
    prompt_ids = [r.prompt_ids for r in load_data(config).pairs]
    on("Tuesday")
    longer = config.model_copy(update={"max_steps": 2})
    assert [r.prompt_ids for r in load_data(longer).pairs] == prompt_ids
    assert train(longer, resume=True).step == 2
    on("Wednesday")
    run = RunDir(config.output_dir)
    hashes = {load_policy(str(path)).renderer.template_hash for path in (run.path, folder)}
    assert hashes == {run.read_manifest()["template"]}
    other = Policy.load(ModelConfig(name_or_path=str(folder), template_date="2025-05-05")).renderer
    assert other.template_hash not in hashes
    assert "05 May 2025" in other.text(USER)


def test_a_run_and_its_adapter_keep_their_chat_template_arguments_and_thinking_tags(make_config, tmp_path: Path):
    """Trained without thinking, it is evaluated so; a caller's own arguments go before."""
    folder, tokenizer = save_tiny(tmp_path / "model"), tiny_tokenizer()
    tokenizer.chat_template += "{% if enable_thinking is false %}[/T]{% endif %}"
    tokenizer.save_pretrained(folder)
    kwargs, tags = {"enable_thinking": False}, ("[T]", "[/T]")
    with refused(ModelError, "enable_thinking", "'false'"):
        load_policy(str(folder), chat_template_kwargs={"enable_thinking": "false"})
    model = {"name_or_path": str(folder), "chat_template_kwargs": kwargs}
    config = make_config(max_steps=1, model=model, loss={"thinking_tags": tags}, **SHORT)
    run = RunDir(train(config).run_dir)
    for path in (run.path, run.latest_checkpoint() / "adapter"):
        renderer = load_policy(str(path)).renderer
        assert (renderer.chat_template_kwargs, renderer.reasoning) == (kwargs, Reasoning.of_tags(tags))
        assert renderer.text(USER).endswith("[/T]")
    given = load_policy(str(run.path), thinking_tags=("<a>", "</a>"), chat_template_kwargs={}).renderer
    assert given.reasoning == Reasoning.of_tags(("<a>", "</a>"))
    assert "[/T]" not in given.text(USER)
    assert tokenizer.decode(load_data(config).pairs[0].prompt_ids).endswith("[/T]")
