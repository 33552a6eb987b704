"use strict";
// The rollout browser, links into folded parts, sorted tables, and downloads. Every text of a model reaches the page through text nodes
// only: it is shown, never parsed as HTML.
(() => {
  const phone = matchMedia("(max-width: 760px)"), PAGE = phone.matches ? 2 : 3, MORE = 10;
  const data = JSON.parse(document.getElementById("rollouts-data").textContent);
  const list = document.getElementById("rollouts-list");
  const status = document.getElementById("rollouts-status");
  const more = document.getElementById("rollouts-more");
  const family = document.getElementById("filter-family");
  const change = document.getElementById("filter-change");
  const search = document.getElementById("filter-text");
  const flow = document.getElementById("filter-flow");
  const SIGNS = { correct: "\u2713", refused: "\u2713", warned: "\u2713", same: "\u2713", suggested: "\u2717", complied: "\u2717", silent: "\u2717", both: "\u00b1", other: "\u25cb", unscored: "?" };
  const EXAMPLE = "#example:";
  const scope = data.items.some((item) => item.split === data.headline) ? "split|" + data.headline : ""; // of the ribbons
  let shown = PAGE;
  let only = null; // the example that a link shows alone
  more.textContent = "Show " + MORE + " more";

  function filled(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children.filter((child) => child !== null));
    return node;
  }
  const SVG = "http://www.w3.org/2000/svg";
  const element = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
  const drawing = (name, attributes, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

  const words = (name) => name.replaceAll("_", " ");
  const joined = (facts) => facts.filter((fact) => fact).join(" \u00b7 ");
  const kind = (verdict) => verdict.split(":")[0];
  const isGood = (verdict) => SIGNS[verdict] === "\u2713";

  function bubbles(messages) {
    return element("div", { class: "bubbles" }, ...messages.map(([role, content]) =>
      element("div", { class: "bubble " + (role === "user" || role === "assistant" ? role : "system") },
        element("span", { class: "role" }, role), element("div", { class: "text" }, content))));
  }

  function badge(verdict) {
    const text = (SIGNS[kind(verdict)] || "\u25cb") + " " + words(verdict).replace(":", ": ");
    return element("span", { class: "badge verdict-" + (kind(verdict) in SIGNS ? kind(verdict) : "other") }, text);
  }

  const level = (kl) => kl === null ? 0 : data.kl_steps.filter((step) => kl >= step).length;
  const nats = (kl) => kl === null ? "no KL" : "KL " + kl.toFixed(kl < 0.01 ? 4 : 3) + " nats";

  // The likeliest tokens of the arm and of the base, as lists with bars.
  function likeliest(lists, arm) {
    return [arm + ", this prompt", "base, clean prompt"].map((title, side) => {
      const rows = [];
      for (let i = 0; lists && i < lists[side].length; i += 2) {
        const share = lists[side][i + 1] / 10, bar = element("span", { class: "share", "aria-hidden": "true" }, element("span", {}));
        bar.firstChild.style.width = share + "%";
        rows.push(element("li", {}, element("span", { class: "word" }, JSON.stringify(data.texts[lists[side][i]])), bar, share.toFixed(1) + "%"));
      }
      return element("div", {}, element("p", { class: "small" }, title),
        element("ol", {}, ...(lists ? rows : [element("li", { class: "small" }, "nearly the same")])));
    });
  }

  function paintedTokens(reply, arm) {
    const readout = element("p", { class: "readout" }, "\u00a0"), both = element("div", { class: "likeliest" });
    const isEnd = (token, i) => i === reply.tokens.length - 1 && reply.stop !== "length" && /^<[^<>\s]+>$/.test(token);
    const tokens = reply.tokens.map((token, i) =>
      element("span", { class: "token k" + level(reply.kl[i]), title: nats(reply.kl[i]) }, isEnd(token, i) ? "(end)" : token));
    const box = element("p", {
      class: "text tokens", tabindex: "0", role: "group",
      "aria-label": "Reply of " + arm + "; arrow keys read each token" + (reply.likeliest ? " and the likeliest ones" : ""),
    }, ...tokens);
    let current = -1;
    function point(index) {
      if (current >= 0) tokens[current].classList.remove("current");
      current = Math.max(0, Math.min(index, tokens.length - 1));
      tokens[current].classList.add("current");
      readout.textContent = "token " + (current + 1) + " of " + tokens.length + " " + JSON.stringify(reply.tokens[current]) + ": " + nats(reply.kl[current]);
      if (reply.likeliest) both.replaceChildren(...likeliest(reply.likeliest[current], arm));
    }
    box.addEventListener("mouseover", (event) => { const i = tokens.indexOf(event.target); if (i >= 0) point(i); });
    box.addEventListener("click", (event) => { const i = tokens.indexOf(event.target); if (i >= 0) point(i); });
    box.addEventListener("focus", () => { if (current < 0) point(0); });
    box.addEventListener("keydown", (event) => {
      const to = { ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (to !== undefined) { event.preventDefault(); point(to); }
    });
    return [box, element("div", { "aria-live": "polite" }, readout, both)];
  }

  function replyCard(reply, arm) {
    const body = reply.tokens ? paintedTokens(reply, arm.name)
      : [element("p", { class: "text" }, reply.text === "" ? "(empty reply)" : reply.text)];
    const facts = [reply.n === undefined ? null : reply.n + (reply.n === 1 ? " token" : " tokens"),
      reply.stop === "length" ? "truncated" : null, reply.cut ? reply.cut + " characters not shown" : null];
    return element("section", { class: "reply arm-" + arm.style },
      element("h4", {}, element("span", { class: "swatch", "aria-hidden": "true" }), arm.name, " ", badge(reply.verdict)),
      body[0], element("p", { class: "small" }, joined(facts)), ...body.slice(1),
      reply.prompt ? element("details", {}, element("summary", {}, "Its own prompt (it answered an earlier turn itself)"), bubbles(reply.prompt)) : null);
  }

  function rolloutCard(item) {
    const facts = [words(item.family), item.answer === null ? null : "correct: " + item.answer,
      item.suggested === null ? null : "suggested: " + item.suggested, item.id];
    const heading = "rollout-" + data.items.indexOf(item);
    return element("article", { class: "rollout card", "aria-labelledby": heading },
      element("h3", { id: heading }, item.title, " ", element("a", { class: "small", href: EXAMPLE + encodeURIComponent(item.id) }, "link")),
      element("p", { class: "small" }, element("span", { class: "badge" }, data.splits[item.split]), " ", joined(facts)),
      bubbles(item.prompt),
      item.teacher === null ? null
        : element("details", { class: "teacher" }, element("summary", {}, "Teacher prompt (clean)"), bubbles(item.teacher)),
      element("div", { class: "replies" }, ...item.replies.map((reply, i) => replyCard(reply, data.arms[i])),
        item.clean === null ? "" : replyCard(item.clean, { name: data.arms[0].name + " without the pressure", style: data.arms[0].style })));
  }

  function transition(item, index) { return [index, kind(item.replies[0].verdict), kind(item.replies[index].verdict)].join("|"); }

  function haystack(item) {
    const texts = [item.id, item.family, item.answer || "", item.suggested || ""];
    for (const [, content] of item.prompt) texts.push(content);
    for (const reply of item.replies) texts.push(reply.text);
    return texts.join("\n").toLowerCase();
  }
  const searchable = new Map(data.items.map((item) => [item, haystack(item)]));

  function counted(keys) {
    const counts = new Map();
    for (const key of keys) counts.set(key, (counts.get(key) || 0) + 1);
    return [...counts].sort((a, b) => a[0] < b[0] ? -1 : 1);
  }

  function fillFilters() {
    for (const split of [...new Set(data.items.map((item) => item.split))]) {
      const members = data.items.filter((item) => item.split === split);
      const title = data.splits[split];
      family.append(element("optgroup", { label: title },
        element("option", { value: "split|" + split }, "All: " + title + " (" + members.length + ")"),
        ...counted(members.map((item) => item.family)).map(([name, n]) =>
          element("option", { value: "family|" + split + "|" + name }, words(name) + " (" + n + ")"))));
    }
    for (let index = 1; index < data.arms.length; index++) {
      change.append(element("optgroup", { label: data.arms[0].name + " \u2192 " + data.arms[index].name },
        ...counted(data.items.map((item) => transition(item, index))).map(([key, n]) => {
          const [, before, after] = key.split("|");
          return element("option", { value: key }, data.arms[0].name + " " + before + " \u2192 " + data.arms[index].name + " " + after + " (" + n + ")");
        })));
    }
  }

  const isPressed = (key) => change.value === key && family.value === scope;

  // The base's verdicts flow into those of the main arm, on the prompts of the headline; a ribbon is a filter.
  function fillFlow() {
    if (!data.main || !data.items.length) return;
    const items = data.items.filter((item) => !scope || item.split === data.headline);
    const ribbons = counted(items.map((item) => transition(item, data.main))).map(([key, n]) => [...key.split("|").slice(1), n, key]);
    const high = (n) => Math.max(140 * n / items.length, 3), ends = [0, 0], marks = [];
    const places = [0, 1].map((side) => new Map(counted(ribbons.map((ribbon) => ribbon[side])).map(([verdict]) => {
      const own = ribbons.filter((ribbon) => ribbon[side] === verdict), top = ends[side];
      ends[side] += Math.max(own.reduce((sum, [, , n]) => sum + high(n), 0), 14) + 5;
      const label = verdict + " (" + own.reduce((sum, [, , n]) => sum + n, 0) + ")";
      marks.push(drawing("text", { x: side ? 228 : 112, y: top + 12, "text-anchor": side ? "start" : "end" }, label));
      return [verdict, top];
    })));
    for (const [before, after, n, key] of ribbons) {
      const [left, right] = [places[0].get(before), places[1].get(after)], h = high(n);
      places[0].set(before, left + h);
      places[1].set(after, right + h);
      const effect = before === after ? "same" : isGood(after) ? "gain" : isGood(before) || SIGNS[after] === "\u2717" ? "loss" : "same";
      const said = before + " \u2192 " + after + " (" + n + ")", curve = "C170," + left + " 170," + right + " 222," + right;
      const ribbon = drawing("path", { "data-key": key, class: effect, role: "button", tabindex: 0, "aria-label": said,
        d: "M118," + left + curve + "v" + h + "C170," + (right + h) + " 170," + (left + h) + " 118," + (left + h) + "z" }, drawing("title", {}, said));
      const toggle = () => { [change.value, family.value] = isPressed(key) ? ["", ""] : [key, scope]; restart(); };
      ribbon.addEventListener("click", toggle);
      ribbon.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
      marks.push(ribbon);
    }
    flow.append(element("p", { class: "small" }, data.arms[0].name + " \u2192 " + data.arms[data.main].name
      + (scope && ", those of the headline's prompts that are on this page (" + data.splits[data.headline] + ")") + ": a ribbon shows its replies"),
      drawing("svg", { class: "flow", viewBox: "0 0 340 " + Math.max(...ends), role: "group", "aria-label": "Changes of verdict" }, ...marks));
  }

  function matches(item) {
    if (only) return item === only;
    const [scope, split, name] = family.value.split("|");
    if (scope === "split" && item.split !== split) return false;
    if (scope === "family" && (item.split !== split || item.family !== name)) return false;
    if (change.value && transition(item, Number(change.value.split("|")[0])) !== change.value) return false;
    return searchable.get(item).includes(search.value.trim().toLowerCase());
  }

  function render() {
    const found = data.items.filter(matches);
    list.replaceChildren(...found.slice(0, shown).map(rolloutCard));
    status.textContent = found.length === 0 ? "No rollout matches: widen a filter."
      : "Showing " + Math.min(shown, found.length) + " of " + found.length + " matching (" + data.items.length + " on this page).";
    more.hidden = found.length <= shown;
    document.getElementById("kl-scale").hidden = !list.querySelector(".tokens");
    for (const ribbon of flow.querySelectorAll("path")) ribbon.setAttribute("aria-pressed", String(isPressed(ribbon.dataset.key)));
  }

  function focusOn(heading) {
    if (heading) { heading.tabIndex = -1; heading.focus({ preventScroll: true }); }
  }

  function restart(item = null) { shown = PAGE; only = item; render(); }
  fillFilters();
  fillFlow();
  family.addEventListener("change", () => restart());
  change.addEventListener("change", () => restart());
  search.addEventListener("input", () => restart());
  document.getElementById("filter-reset").addEventListener("click", () => { family.value = ""; change.value = ""; search.value = ""; restart(); });
  more.addEventListener("click", () => {
    const first = shown;
    shown += MORE;
    render();
    focusOn(list.children[first]);
  });
  const fold = () => { document.getElementById("filter").open = !phone.matches; };
  phone.addEventListener("change", fold);
  fold();
  document.getElementById("rollouts").classList.add("ready");
  render();

  // Replies over training: a slider shows them one by one; without this script they are a list.
  document.querySelectorAll(".over-time").forEach((card, number) => {
    const replies = [...card.querySelectorAll("[data-step]")], last = replies.length - 1, id = "step-of-" + number;
    const label = element("label", { for: id, class: "small" }), box = card.querySelector(".replies");
    const slider = element("input", { type: "range", id, min: 0, max: last, value: 0 });
    function show() {
      replies.forEach((reply, i) => { reply.hidden = i !== Number(slider.value); });
      label.textContent = "Training step " + replies[slider.value].dataset.step + " of " + replies[last].dataset.step;
      slider.setAttribute("aria-valuetext", label.textContent);
    }
    slider.addEventListener("input", show);
    box.setAttribute("aria-live", "polite");
    box.before(element("div", { class: "steps" }, label, slider));
    show();
  });

  // A link to an example shows it alone; a link to a folded part opens it.
  function follow() {
    const item = data.items.find((one, i) => [EXAMPLE + encodeURIComponent(one.id), "#e" + i].includes(location.hash));
    if (item) {
      family.value = ""; change.value = ""; search.value = "";
      restart(item);
      document.getElementById("rollouts").scrollIntoView();
      focusOn(list.querySelector("h3"));
      return;
    }
    const target = document.getElementById(location.hash.slice(1));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", follow);
  follow();
  addEventListener("beforeprint", () => document.querySelectorAll("details.warnings").forEach((part) => { part.open = true; }));

  // A row of dots is one stop of the tab key; arrow keys go along it.
  for (const row of document.querySelectorAll(".dots [role=group]")) {
    const links = [...row.querySelectorAll("a")];
    links.forEach((link, i) => {
      const item = data.items[link.textContent];
      link.tabIndex = i ? -1 : 0;
      link.title = data.arms[row.dataset.arm].name + ", " + words(item.replies[row.dataset.arm].verdict) + ": " + item.title;
      link.setAttribute("aria-label", link.title);
      link.addEventListener("click", () => { if (location.hash === link.hash) follow(); });  // no hashchange then
    });
    row.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = links[links.indexOf(event.target) + step];
      if (!next) return;
      event.preventDefault();
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }

  function save(name, content, type) {
    const link = element("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const fileName = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "report";
  const buttons = (title, ...made) => element("p", { class: "downloads" }, "Save:", ...made.flatMap(([name, act]) => {
    const button = element("button", { type: "button", class: "chip", "aria-label": name + ": " + title }, name);
    button.addEventListener("click", act);
    return [" ", button];
  }));

  // A chart with the page's own style and its legend, as a file that stands alone.
  const LEGEND_ROW = 18;
  const legendOf = (chart) => [...chart.closest("figure").querySelectorAll(".legend li")];
  const fullHeight = (chart) => chart.viewBox.baseVal.height + LEGEND_ROW * legendOf(chart).length + 8;
  function standalone(chart) {
    const copy = chart.cloneNode(true), box = chart.viewBox.baseVal;
    const high = fullHeight(chart);
    filled(copy, { xmlns: SVG, viewBox: "0 0 " + box.width + " " + high, width: 2 * box.width, height: 2 * high }, []);
    legendOf(chart).forEach((item, i) => {
      const key = filled(item.querySelector("svg").cloneNode(true), { y: box.height + LEGEND_ROW * i }, []);
      copy.append(key, drawing("text", { x: 32, y: box.height + LEGEND_ROW * i + 12 }, item.textContent));
    });
    copy.prepend(drawing("style", {}, document.querySelector("style").textContent,
      ".chart { max-width: none; font-family: system-ui, sans-serif; background: var(--card); }"));
    return new XMLSerializer().serializeToString(copy);
  }
  function savePng(chart, name) {
    const image = new Image(), box = chart.viewBox.baseVal;
    image.addEventListener("load", () => {
      const canvas = element("canvas", { width: 4 * box.width, height: 4 * fullHeight(chart) });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(name, blob, "image/png"));
    });
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(chart));
  }
  for (const chart of document.querySelectorAll("svg.chart")) {
    const figure = chart.closest("figure"), title = figure.getAttribute("aria-label"), name = fileName(title);
    figure.append(buttons(title, ["SVG", () => save(name + ".svg", standalone(chart), "image/svg+xml")],
      ["PNG", () => savePng(chart, name + ".png")]));
  }

  // A table sorts by a column: figures first, by the first one of a cell; then texts. Sections keep their places.
  function figureOf(cell) {
    const found = /^[\u2212+-]?\d[\d,]*(\.\d+)?/.exec(cell.textContent.trim());
    return found ? Number(found[0].replace("\u2212", "-").replaceAll(",", "")) : Infinity;
  }
  function sortBy(table, head) {
    const column = head.cellIndex, sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.ariaSort = other === head ? (sign > 0 ? "ascending" : "descending") : null;
    const order = (a, b) => {
      const [x, y] = [figureOf(a), figureOf(b)];
      return x === y ? sign * a.textContent.localeCompare(b.textContent) : x === Infinity ? 1 : y === Infinity ? -1 : sign * (x - y);
    };
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => row.cells.length > Math.max(column, 1));
      body.append(...rows.sort((a, b) => order(a.cells[column], b.cells[column])));
    }
  }
  const cells = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim().replace(/\s+/g, " ")));
  // a spreadsheet computes what begins so; our own cells are numbers, with an interval
  const plain = (cell) => /^[=@+-]/.test(cell) && !/^[+-][\d.,]+%?( \[.*\])?$/.test(cell) ? "'" + cell : cell;
  const quoted = (cell) => /[",\n]/.test(cell) ? '"' + cell.replaceAll('"', '""') + '"' : cell;
  const csv = (rows) => rows.map((row) => row.map((cell) => quoted(plain(cell))).join(",")).join("\n") + "\n";
  const TEX = { "\\": "\\textbackslash{}", "\u2212": "$-$", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const tex = (text) => text.replace(/[\\~^\u2212&%$#_{}]/g, (sign) => TEX[sign] || "\\" + sign);
  function latex(rows) {
    const width = Math.max(...rows.map((row) => row.length));
    return "\\begin{tabular}{" + "l".repeat(width) + "}\n" + rows.map((row) => row.map(tex).join(" & ") + " \\\\").join("\n") + "\n\\end{tabular}\n";
  }
  for (const table of document.querySelectorAll(".box > table")) {
    const region = table.parentElement, title = region.getAttribute("aria-label"), name = fileName(title);
    for (const head of table.tHead.rows[0].cells) {
      const button = element("button", { type: "button", class: "sort" }, ...head.childNodes);
      button.addEventListener("click", () => sortBy(table, head));
      head.append(button);
    }
    region.after(buttons(title, ["CSV", () => save(name + ".csv", csv(cells(table)), "text/csv")],
      ["LaTeX", () => save(name + ".tex", latex(cells(table)), "application/x-tex")]));
  }
})();
