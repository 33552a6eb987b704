"""The search of the site: what a user types leads to the page that answers it."""

import math
import re
from collections import Counter

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("material", reason="the site's theme is not installed")

ANSWERS = {
    "learning rate": "faq",
    "how many pairs": "faq",
    "multi-turn": "faq",
    "own metric": "faq",
    "4090": "faq",
    "Windows": "faq",
    "Docker": "faq",
    "memory": "how-to/memory",
    "resume": "how-to/fix-a-run|faq",
    "reasoning model": "recipes/reasoning",
    "system prompt leakage": "recipes/system-prompt-leakage",
    "cite": "faq",
    "merge adapter": "faq",
    "vllm": "how-to/vllm",
    "api judge": "how-to/judges",
    "negative kl": "faq",
    "german": "faq",
    "sft cost": "faq",
    "anchors": "faq",
    "trl": "how-to/trl|how-to/several-gpus|faq",
}
"""What is typed, and the pages that may come first."""
TITLE_BOOST, K1 = 1000, 1.2
STOP_WORDS = {"how", "however", "own"}
"""Words that lunr leaves out of its index, of those that begin like one of the queries'."""


@pytest.fixture(scope="module")
def index():
    """The entries of search_index.json, and what splits words; no templates and no mkdocstrings, which take long."""
    from mkdocs.config import load_config
    from mkdocs.structure.files import get_files
    from mkdocs.structure.nav import get_navigation

    site = REPOSITORY / "mkdocs.yml"
    [separator] = re.findall(r"separator: '(.+)'", site.read_text(encoding="utf-8"))
    config = load_config(str(site), plugins=["material/meta", {"material/search": {"separator": separator}}])
    plugins, search = config.plugins, config.plugins["material/search"]
    config = plugins.on_config(config)
    files = plugins.on_files(get_files(config), config=config)
    get_navigation(files, config)
    for file in files.documentation_pages():
        page = file.page
        page.read_source(config)
        page.markdown = plugins.on_page_markdown(page.markdown, page=page, config=config, files=files)
        page.render(config, files)
        search.search_index.add_entry_from_context(page)
    entries = search.search_index.entries
    words = [
        {name: Counter(w for w in split(entry[name], separator) if w not in STOP_WORDS) for name in ("title", "text")}
        for entry in entries
    ]
    return entries, words, separator


def split(text, separator):
    return [word for word in re.split(separator, re.sub(r"<[^>]*>", " ", text).lower()) if word]


def first_pages(index, query):
    """The pages in the order of the browser's search: lunr with Material's settings (no length norm, prefixes)."""
    entries, words, separator = index
    terms, scores = split(query, separator), Counter()
    having = Counter(word for one in words for field in one.values() for word in field)
    for field, boost in (("title", TITLE_BOOST), ("text", 1)):
        there = {word for one in words for word in one[field]}
        weights = Counter(word for term in terms for word in there if word.startswith(term))
        norm = math.sqrt(sum(weight**2 for weight in weights.values()))
        for word, weight in weights.items():
            idf = math.log(1 + abs((len(words) - having[word] + 0.5) / (having[word] + 0.5)))
            for number, one in enumerate(words):
                if n := one[field][word]:
                    share = weight / norm * idf * (K1 + 1) * n / (K1 + n)
                    scores[number] += share * boost * entries[number].get("boost", 1)
    for number in scores:
        typed = {term: any(w.startswith(term) for field in words[number].values() for w in field) for term in terms}
        counted = [has for term, has in typed.items() if has or term in STOP_WORDS]
        whole_page = "#" not in entries[number]["location"]
        scores[number] *= 1 + (whole_page + sum(counted) / len(counted)) ** 2
    pages = (entries[number]["location"].partition("#")[0] for number, _ in scores.most_common())
    return [page.removesuffix(".html") for page in dict.fromkeys(pages)]


@pytest.mark.parametrize("query", ANSWERS)
def test_a_search_leads_to_its_page(index, query):
    pages = first_pages(index, query)
    assert pages[0] in ANSWERS[query].split("|"), pages[:5]


def test_what_is_for_developers_is_not_searched(index):
    pages = {entry["location"].partition("/")[0] for entry in index[0]}
    assert "how-to" in pages
    assert not pages & {"decisions", "results"}
