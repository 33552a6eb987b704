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
    return search.search_index.entries, separator


def first_pages(index, query):
    """The pages in the order of the browser's search: lunr with Material's settings (no length norm, prefixes)."""
    entries, separator = index
    words = [
        {
            name: Counter(word for word in split(entry[name], separator) if word not in STOP_WORDS)
            for name in ("title", "text")
        }
        for entry in entries
    ]
    scores = Counter()
    for field, boost in (("title", TITLE_BOOST), ("text", 1)):
        clauses = [
            {word for one in words for word in one[field] if word.startswith(term)} for term in split(query, separator)
        ]
        terms = Counter(word for clause in clauses for word in clause)
        norm = math.sqrt(sum(weight**2 for weight in terms.values()))
        for word, weight in terms.items():
            having = sum(word in one[name] for one in words for name in ("title", "text"))
            idf = math.log(1 + abs((len(words) - having + 0.5) / (having + 0.5)))
            for number, one in enumerate(words):
                if n := one[field][word]:
                    scores[number] += (
                        weight / norm * idf * (K1 + 1) * n / (K1 + n) * boost * entries[number].get("boost", 1)
                    )
    for number in scores:
        there = [word for field in words[number].values() for word in field]
        typed = {term: any(word.startswith(term) for word in there) for term in split(query, separator)}
        counted = [has for term, has in typed.items() if has or term in STOP_WORDS]
        whole_page = "#" not in entries[number]["location"]
        scores[number] *= 1 + (whole_page + sum(counted) / len(counted)) ** 2
    pages = (entries[number]["location"].partition("#")[0] for number, _ in scores.most_common())
    return [page.removesuffix(".html") for page in dict.fromkeys(pages)]


def split(text, separator):
    return [word for word in re.split(separator, re.sub(r"<[^>]*>", " ", text).lower()) if word]


@pytest.mark.parametrize("query", ANSWERS)
def test_a_search_leads_to_its_page(index, query):
    pages = first_pages(index, query)
    assert pages[0] in ANSWERS[query].split("|"), pages[:5]


def test_what_is_for_developers_is_not_searched(index):
    pages = {entry["location"].partition("/")[0] for entry in index[0]}
    assert "how-to" in pages
    assert not pages & {"decisions", "results"}
