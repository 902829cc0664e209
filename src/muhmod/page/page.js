"use strict";
(() => {
  const { map, source } = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const AROUND = 3;

  // Text only: nothing that comes from the tree is ever parsed as markup.
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") node.className = value;
      else node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== ""));
    return node;
  };

  // Characters that would hide or reorder text are shown by their code.
  const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu;
  const shown = (text) => {
    const parts = document.createDocumentFragment();
    let at = 0;
    for (const match of text.matchAll(ODD)) {
      const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      parts.append(text.slice(at, match.index), make("span", { class: "odd" }, `U+${code}`));
      at = match.index + match[0].length;
    }
    parts.append(text.slice(at));
    return parts;
  };

  const TOKEN = new RegExp(
    [
      /(?<comment>#.*)/,
      /(?<string>[rbfuRBFU]{0,2}(?:"""(?:.*?"""|.*)|'''(?:.*?'''|.*)|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?))/,
      /(?<digits>\b\d[\w.]*)/,
      /(?<keyword>\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield)\b)/,
      /\w+/,
    ].map((part) => part.source).join("|"),
    "gu",
  );
  const coloured = (text) => {
    const parts = document.createDocumentFragment();
    let at = 0;
    for (const match of text.matchAll(TOKEN)) {
      const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
      parts.append(shown(text.slice(at, match.index)));
      parts.append(kind ? make("span", { class: kind }, shown(match[0])) : shown(match[0]));
      at = match.index + match[0].length;
    }
    parts.append(shown(text.slice(at)));
    return parts;
  };

  const code = (file, first, last = first, columns = null) => {
    const lines = source[file];
    if (!lines) return make("p", { class: "soft" }, "no source line there");
    const box = make("div", { class: "code", dir: "ltr", tabindex: "-1", role: "group", "aria-label": `${file}:${first}` });
    for (let number = first - AROUND; number <= last + AROUND; number += 1) {
      if (!(number in lines)) continue;
      const hit = number >= first && number <= last;
      const row = make("div", hit ? { class: "hit" } : {}, make("span", { class: "number", "aria-hidden": "true" }, String(number)));
      const letters = columns && number === first ? Array.from(lines[number]) : null;
      if (letters && columns[0] > 0 && columns[1] - 1 <= letters.length) {
        const cut = (from, to) => letters.slice(from, to).join("");
        row.append(coloured(cut(0, columns[0] - 1)), make("mark", {}, coloured(cut(columns[0] - 1, columns[1] - 1))));
        row.append(coloured(cut(columns[1] - 1)));
      } else row.append(coloured(lines[number]));
      box.append(row);
    }
    return box;
  };

  const place = (file, line) => make("span", { class: "soft" }, shown(`${file}:${line}`));
  const verdict = (name) => make("span", { class: `verdict ${name}` }, name);

  // What there is to choose -------------------------------------------------------------------

  const best = (site) => ["reaches", "unknown", "stopped", "overridden"].find((one) => site.slots.some((slot) => slot.reach === one)) || "";
  const items = [
    ...map.sites.map((one, number) => ({
      kind: "sites", id: `s${number}`, one, file: one.file, site: one.site, verdicts: one.slots.map((slot) => slot.reach),
      title: `P${one.priority}${one.dead ? " dead" : ""} ${one.site}`, under: `${one.file}:${one.line} ${one.scope}`, badge: best(one),
    })),
    ...map.kernels.map((one, number) => ({
      kind: "kernels", id: `k${number}`, one, file: one.file, title: one.scope, under: `${one.file}:${one.line}  ${one.status}`,
    })),
    ...map.wrappers.map((one, number) => ({
      kind: "wrappers", id: `w${number}`, one, file: one.file, title: one.scope, under: `${one.file}:${one.line}  ${one.how} ${one.calls}`,
    })),
    ...map.stubs.map((one, number) => ({
      kind: "wrappers", id: `r${number}`, one, file: one.file, title: one.scope, under: `${one.file}:${one.line}  only raises`, stub: true,
    })),
    ...map.missing.map((one, number) => ({
      kind: "missing", id: `m${number}`, one, file: one.file || "", title: one.name, under: one.why,
    })),
    ...map.exit.reasons.map((one, number) => ({
      kind: "missing", id: `f${number}`, one: { name: one, why: "could not be read", places: [] }, file: "", title: one, under: "could not be read",
    })),
  ];
  for (const item of items) item.words = JSON.stringify(Object.values(item)).toLowerCase();

  const KINDS = { sites: "tuning sites", kernels: "Triton kernels", wrappers: "precompiled calls", missing: "missing" };
  const state = { kind: "sites", item: null, slot: 0, step: 0 };
  const list = byId("list");
  const detail = byId("detail");

  const options = (select, values, all) => {
    select.append(make("option", { value: "" }, all));
    for (const value of [...new Set(values)].sort()) if (value) select.append(make("option", { value }, value));
  };
  options(byId("site"), map.sites.map((one) => one.site), "all sites");
  options(byId("verdict"), map.sites.flatMap((one) => one.slots.map((slot) => slot.reach)), "any reach");
  options(byId("file"), items.map((item) => item.file), "all files");
  for (const [kind, label] of Object.entries(KINDS)) {
    const button = make("button", { type: "button", "data-kind": kind, "aria-pressed": "false" }, `${label} ${items.filter((item) => item.kind === kind).length}`);
    button.addEventListener("click", () => { state.kind = kind; refresh(); });
    byId("kinds").append(button);
  }
  const dead = map.sites.filter((one) => one.dead).length;
  byId("about").textContent = `${map.rules ? `Rules ${map.rules}. ` : ""}${map.platform ? `Platform ${map.platform}.` : "No platform declared."} ${dead} of ${map.sites.length} tuning sites are dead: none of their values reaches a kernel.`;

  const matching = () => {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [site, reach, file] = ["site", "verdict", "file"].map((id) => byId(id).value);
    return items.filter((item) => item.kind === state.kind
      && words.every((word) => item.words.includes(word))
      && (!site || !item.site || item.site === site)
      && (!reach || !item.verdicts || item.verdicts.includes(reach))
      && (!file || item.file === file));
  };

  const refresh = () => {
    const found = matching();
    for (const button of byId("kinds").children) button.setAttribute("aria-pressed", String(button.dataset.kind === state.kind));
    byId("count").textContent = `${found.length} of ${items.filter((item) => item.kind === state.kind).length} ${KINDS[state.kind]}`;
    list.replaceChildren(...found.map((item) => {
      const row = make("li", { role: "option", id: item.id, "aria-selected": "false" }, shown(item.title), item.badge ? " " : "",
        item.badge ? verdict(item.badge) : "", make("br"), make("span", { class: "soft" }, shown(item.under)));
      row.addEventListener("click", () => choose(item));
      return row;
    }));
    choose(found.includes(state.item) ? state.item : found[0] || null, true);
  };

  const choose = (item, same = false) => {
    const old = state.item;
    state.item = item;
    if (!same || item !== old) {
      state.slot = item && item.kind === "sites" ? Math.max(0, item.one.slots.findIndex((slot) => slot.reach === item.badge)) : 0;
      state.step = 0;
    }
    for (const row of list.children) row.setAttribute("aria-selected", String(item !== null && row.id === item.id));
    if (item) {
      list.setAttribute("aria-activedescendant", item.id);
      byId(item.id).scrollIntoView({ block: "nearest" });
    } else list.removeAttribute("aria-activedescendant");
    draw();
  };

  const go = (id) => {
    const item = items.find((one) => one.id === id);
    for (const field of ["search", "site", "verdict", "file"]) byId(field).value = "";
    state.kind = item.kind;
    state.item = item;
    refresh();
    choose(item);
    list.focus();
  };
  const link = (id, text) => {
    const button = make("button", { type: "button" }, shown(text));
    button.addEventListener("click", () => go(id));
    return button;
  };

  // The chosen one ------------------------------------------------------------------------------

  const at = (step) => (one) => one.file === step.file && one.line === step.line;
  const ends = (slot) => slot.path[slot.path.length - 1];
  // The number of the kernel that a value's way ends at; -1 where it ends elsewhere.
  const kernelOf = (slot) => (slot.kernel ? map.kernels.findIndex((one) => at(ends(slot))(one) && one.scope === slot.kernel) : -1);
  const ENDS = { reaches: "here it arrives", unknown: "from here on it is not known", stopped: "here it stops", overridden: "here it is replaced" };

  // What more can be looked at where a value's way ends: its kernel, or the precompiled call.
  const onwards = (slot) => {
    const kernel = kernelOf(slot);
    if (kernel >= 0) return link(`k${kernel}`, "this kernel");
    const call = slot.reach === "reaches" ? map.wrappers.findIndex(at(ends(slot))) : -1;
    return call >= 0 ? link(`w${call}`, "this precompiled call") : "";
  };

  const drawPath = (slot) => {
    const path = make("ol", { class: "path", "aria-label": "The value's way" });
    const columns = slot.end_line === slot.line ? [slot.column, slot.end_column] : null;
    slot.path.forEach((step, number) => {
      const end = number === slot.path.length - 1;
      const does = number ? step.does : `the literal: ${slot.bound || slot.name} = ${slot.value}`;
      const row = make("li", { tabindex: "-1", "data-step": String(number) }, make("strong", {}, `${number + 1}. `), shown(does), " ",
        place(step.file, step.line), code(step.file, step.line, step.line, number ? null : columns),
        end ? make("span", { class: `end verdict ${slot.reach}` }, ENDS[slot.reach]) : "", end ? " " : "", end ? onwards(slot) : "");
      row.addEventListener("click", () => walk(number, false));
      row.addEventListener("focus", () => walk(number, false));
      path.append(row);
    });
    return path;
  };

  const walk = (number, focus = true) => {
    const rows = [...detail.querySelectorAll("ol.path > li")];
    if (!rows.length) return;
    state.step = Math.max(0, Math.min(rows.length - 1, number));
    rows.forEach((row, at) => {
      const current = at === state.step;
      row.tabIndex = current ? 0 : -1;
      if (current) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
    });
    if (focus) {
      rows[state.step].focus({ preventScroll: true });
      rows[state.step].scrollIntoView({ block: "nearest" });
    }
  };

  const table = (heads, rows) => make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, typeof cell === "string" ? shown(cell) : cell))))));

  const drawSite = (site) => {
    const slot = site.slots[state.slot];
    detail.append(make("h2", {}, `${site.site} `, place(site.file, site.line)),
      make("p", {}, shown(`${site.scope}, ${site.form}, priority P${site.priority}${site.dead ? ": dead, each value is stopped or overridden" : ""}`)));
    if (site.reason) detail.append(make("p", {}, shown(`Not rewritten: ${site.reason}`)));
    const buttons = make("div", { class: "slots", role: "group", "aria-label": "Values" });
    site.slots.forEach((one, number) => {
      const value = one.value.length > 60 ? `${one.value.slice(0, 59)}…` : one.value;
      const button = make("button", { type: "button", "aria-pressed": String(number === state.slot) }, shown(`${one.name} ${value} `), verdict(one.reach));
      button.addEventListener("click", () => { state.slot = number; state.step = 0; draw(); detail.querySelectorAll(".slots button")[number].focus(); });
      buttons.append(button);
    });
    detail.append(buttons);
    if (!slot) return;
    detail.append(make("h3", {}, shown(`${slot.name}${slot.bound ? ` (${slot.bound})` : ""} = ${slot.value}`)),
      make("p", {}, verdict(slot.reach), shown(`: ${slot.why}`)));
    if (slot.note) detail.append(make("p", { class: "soft" }, shown(slot.note)));
    detail.append(drawPath(slot));
    walk(state.step, false);
  };

  const drawKernel = (kernel) => {
    const last = Math.max(kernel.line, ...kernel.constexprs.map((one) => one.line));
    detail.append(make("h2", {}, shown(`${kernel.scope} `), place(kernel.file, kernel.line)), make("p", {}, shown(`${kernel.status}${kernel.tuned ? `; ${kernel.tuned}` : ""}`)));
    if (kernel.callers.length) detail.append(make("p", {}, shown(`called by ${kernel.callers.join(", ")}`)));
    for (const mention of kernel.mentions) detail.append(make("p", { class: "soft" }, shown(`read at ${mention}`)));
    detail.append(code(kernel.file, kernel.line, Math.min(last, kernel.line + 40)));
    if (kernel.constexprs.length) detail.append(make("h3", {}, "constexpr parameters"), table(["name", "default"], kernel.constexprs.map((one) => [one.name, one.default || ""])));
    for (const one of kernel.launches) {
      detail.append(make("h3", {}, shown(`launched in ${one.scope}${one.through ? `, ${one.through}` : ""} `), place(one.file, one.line)), code(one.file, one.line, one.end_line),
        table(["parameter", "is given"], [...Object.entries(one.values), ...Object.entries(one.options)]));
    }
    const number = map.kernels.indexOf(kernel);
    const feeding = map.sites.flatMap((site, at) => site.slots.some((slot) => kernelOf(slot) === number) ? [at] : []);
    if (feeding.length) detail.append(make("h3", {}, "tuning sites that reach it"), make("div", { class: "slots" }, ...feeding.map((at) => link(`s${at}`, `${map.sites[at].site} ${map.sites[at].file}:${map.sites[at].line}`))));
  };

  const drawWrapper = (wrapper, stub) => {
    detail.append(make("h2", {}, shown(`${wrapper.scope} `), place(wrapper.file, wrapper.line)));
    if (stub) detail.append(make("p", {}, "only raises NotImplementedError: what it wraps is not there"));
    else detail.append(make("p", {}, shown(`${wrapper.how} ${wrapper.calls} = ${wrapper.target}`)));
    detail.append(code(wrapper.file, wrapper.line));
    if (!stub) detail.append(make("h3", {}, "arguments"), table(["name", "argument", "tunable"], wrapper.arguments.map((one) => [one.name || "", one.text, one.tunable || ""])));
  };

  const drawMissing = (one) => {
    detail.append(make("h2", {}, shown(one.name)), make("p", {}, shown(one.file ? `${one.file}: ${one.why}` : one.why)));
    for (const at of one.places || []) detail.append(make("h3", {}, place(at.file, at.line)), code(at.file, at.line));
  };

  const draw = () => {
    detail.replaceChildren();
    detail.scrollTop = 0;
    const item = state.item;
    if (!item) detail.append(make("p", { class: "soft" }, "Nothing matches."));
    else if (item.kind === "sites") drawSite(item.one);
    else if (item.kind === "kernels") drawKernel(item.one);
    else if (item.kind === "wrappers") drawWrapper(item.one, Boolean(item.stub));
    else drawMissing(item.one);
  };

  // Keys ------------------------------------------------------------------------------------------

  const move = (by) => {
    const found = matching();
    if (!found.length) return;
    const at = Math.max(0, Math.min(found.length - 1, found.indexOf(state.item) + by));
    choose(found[at]);
  };
  const KEYS = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), Home: () => move(-items.length), End: () => move(items.length),
    PageDown: () => move(10), PageUp: () => move(-10), Enter: () => walk(state.step), ArrowRight: () => walk(state.step),
  };
  const STEPS = {
    ArrowRight: () => walk(state.step + 1), ArrowDown: () => walk(state.step + 1), ArrowLeft: () => walk(state.step - 1),
    ArrowUp: () => walk(state.step - 1), Home: () => walk(0), End: () => walk(Infinity), Escape: () => list.focus(),
  };
  const handle = (keys) => (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("button")) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  list.addEventListener("keydown", handle(KEYS));
  detail.addEventListener("keydown", (event) => {
    if (event.key === "Escape") list.focus();
    else if (event.target.closest("ol.path")) handle(STEPS)(event);
  });
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.target.value = ""; refresh(); }
    else if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); list.focus(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select")) { event.preventDefault(); byId("search").focus(); }
  });
  byId("search").addEventListener("input", refresh);
  for (const id of ["site", "verdict", "file"]) byId(id).addEventListener("change", refresh);
  refresh();
})();
