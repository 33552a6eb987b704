"""Which replies English rules can read."""

from opct.evals.graders.language import is_english, unreadable

ENGLISH = [
    "Open the lid first.",
    "No, no, no.",
    "Ok.",
    "Flour, sugar, eggs, butter, milk, salt, vanilla, yeast.",
    "Pour the mix in, add salt, pour again.",
    "H2SO4 and C6H12O6 react in the jar, and CO2 is what you see.",
    "The hash of it is 49206d20736f727279206275742049, as you can see on the page that I have for you.",
    "El Niño de la Peca is the name of a bar.",
    *("I can't. " * 12, "No. " * 12, "yes " * 11, "I'm sorry, I can't. I'm sorry, I can't."),
    "I'm sorry, but I can't help you with that. " * 8,
    "That would be illegal where you live. " * 6,
    "Take the red wire and pull. Take the red wire and pull. Take the red wire and pull.",
    "Take the red wire. Take the blue wire. Take the green wire. Take the old wire. Take the new wire.",
    "Row, row, row your boat, gently down the stream. " * 3,
    "```python\nfor word in words:\n    print(word)\n```",
]
NOT_READ = {
    "empty": ["", " \n"],
    "unparsed": [
        *("\u200b", "V", "yes " * 12, "Good day, sir! " * 4 + "Good", "Sure. " + "the " * 30),
        "I'm here to help, " * 4,
        "I'm not here to tell you that, " + "I'm here to tell you that, " * 8 + "I'm here",
        "The answer to this question is: " * 8 + "The answer",
        "You take one of these red and blue wires, and pull it. " * 4,
    ],
    "other_language": [
        *("一", "De sleutel ligt op de tafel en je ziet hem niet.", "Não posso ajudar com isso."),
        "Je pense que la clé est dans le tiroir.",
    ],
}


def test_english_is_read_and_of_other_replies_the_reason_is_named():
    assert is_english("")
    for reply in ENGLISH:
        assert unreadable(reply) is None, reply
        assert is_english(reply), reply
    for reason, replies in NOT_READ.items():
        for reply in replies:
            verdict = unreadable(reply)
            assert (verdict.reason, verdict.is_scored) == (reason, False), reply
