"""Small chat templates with the marks of today's models, each with a tokenizer that knows its special tokens."""

import json

from tests.tiny import tiny_tokenizer

CHANNELS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""As gpt-oss."""
NAMED_CHANNEL = (
    "{% for m in messages %}{{ '<|turn>' + m.role + '\n' + m.content + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}"
    "{% if not enable_thinking %}{{ '<|channel>thought\n<channel|>' }}{% endif %}{% endif %}"
)
"""As Gemma 4."""
OWN_MARKS = (
    "{% for m in messages %}{{ '<|begin|>' + m.role }}"
    "{% if m.reasoning_content %}{{ '<|inner|>' + m.reasoning_content + '<|end|><|begin|>assistant' }}{% endif %}"
    "{{ '<|content|>' + m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant{% endif %}"
)
"""A form that no list knows: only what the template writes for a message's reasoning shows it."""
NESTED_MARKS = (
    "{% macro begin(tag) %}{{ '<|open|>' + tag + '<|sep|>' }}{% endmacro %}"
    "{% macro finish(tag) %}{{ '<|close|>' + tag + '<|sep|>' }}{% endmacro %}"
    "{% for m in messages %}{{ begin('message ' + m.role) }}{% if m.role == 'assistant' %}"
    "{{ begin('think') + (m.reasoning_content or '') + finish('think') }}"
    "{{ begin('response') + m.content + finish('response') }}"
    "{% else %}{{ m.content }}{% endif %}{{ finish('message') + '<|end_of_msg|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ begin('message assistant') + begin('think') }}{% endif %}"
)
"""As Kimi K3: the names of the parts are ordinary text, and the generation prompt opens the reasoning."""
STEPS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}"
    "{% if m.reasoning_content %}{{ m.reasoning_content + '\n[BEGIN FINAL RESPONSE]\n' }}{% endif %}"
    "{{ m.content + '\n' }}{% if m.role == 'assistant' %}{{ '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if messages[-1].role != 'assistant' %}{{ '<|assistant|>\nHere are my reasoning steps:\n' }}{% endif %}"
    "{# no <thinking> tags #}"
)
"""As Apriel: a sentence in the generation prompt opens the reasoning, which it always writes."""
ANSWER_TAGS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}{{ '<why>\n' + m.reasoning_content + '\n</why>\n' }}{% endif %}"
    "{{ '<answer>\n' + m.content + '\n</answer><|end|>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""As Hunyuan: the answer has tags, too."""
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ '<|im_start|>system\nToday: ' + date_string + '<|im_end|>\n' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Llama 3.2."""
TWO_ENDS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}<|endoftext|>{% endif %}"
)
"""As Phi-4-mini: the end of the text stands after the last turn alone."""
NO_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL = {
    CHANNELS: ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"),
    NAMED_CHANNEL: ("<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    OWN_MARKS: ("<|begin|>", "<|inner|>", "<|content|>", "<|end|>"),
    NESTED_MARKS: ("<|open|>", "<|sep|>", "<|close|>", "<|end_of_msg|>"),
    STEPS: ("<|user|>", "<|assistant|>", "<|end|>"),
    ANSWER_TAGS: ("<|user|>", "<|assistant|>", "<|end|>"),
    TWO_ENDS: ("<|user|>", "<|assistant|>", "<|end|>"),
}


def tokenizer_of(template: str):
    """The tiny tokenizer with a template and its special tokens; its end-of-sequence token is still `<|im_end|>`."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL.get(template, ()))})
    tokenizer.chat_template = template
    return tokenizer


def tokenizer_that_strips():
    """Like Llama 2's: a space belongs to the word after it, and decoding strips the first one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["this is the answer to what the user asks, and it is short."] * 4, trainer)
    written = json.loads(tokenizer.to_str())
    vocabulary = written["model"]["vocab"]
    vocabulary |= {f"<0x{i:02X}>": len(vocabulary) + i for i in range(256)}
    tokenizer = Tokenizer.from_str(json.dumps(written))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template="{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}",
    )
