// What the theme leaves out for keyboards and screen readers.
const name = (text) => text.replace(/\s+/g, " ").trim();
const reach = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-sidebar__scrollwrap")) {
    const table = box.querySelector("table");
    if (box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight) {
      box.removeAttribute("tabindex");
      continue;
    }
    box.tabIndex = 0; // an area that scrolls can be reached
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", table ? "Table: " + name(table.rows[0].innerText) : "Pages");
  }
};
addEventListener("load", () => setTimeout(() => { // after the theme has put the tables into their boxes
  reach();
  document.querySelectorAll(".md-typeset th:empty").forEach((head) => head.replaceWith(document.createElement("td")));
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", "Code " + (i + 1)));
}));
addEventListener("resize", reach);
