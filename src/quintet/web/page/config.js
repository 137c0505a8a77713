// Owns the tables of a run: its keys beside those of its preset and of another run, its data, and its checkpoints.
"use strict";

(function () {
  const { make, source, attempt, whole, size, ago } = quintet;

  function said(value) {
    return value === undefined ? "" : value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value);
  }

  function table(heads, rows, label) {
    return make("div", { class: "scroll" }, make("table", { class: "plain", "aria-label": label },
      make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, rows)));
  }

  function configuration(about, others) {
    const { keys, preset, preset_keys: base, problem } = about.config;
    const place = make("div", {});
    const only = make("input", { type: "checkbox", checked: true, onchange: () => render() });
    const filter = make("input", { type: "search", placeholder: "Keys…", "aria-label": "Show keys with this text", oninput: () => render() });
    let other = null;
    const choose = make("select", { "aria-label": "Compare with another run", onchange: async () => {
      const found = choose.value ? await attempt(source.run(choose.value)) : null;
      other = found ? { id: choose.value, keys: found.config.keys } : null;
      render();
    } }, make("option", { value: "" }, "Compare with…"), others.map((id) => make("option", { value: id }, id)));
    const known = Object.keys(base).length > 0;
    const differs = (key, from) => from && said(keys[key]) !== said(from[key]);
    function render() {
      const all = [...new Set([...Object.keys(keys), ...(other ? Object.keys(other.keys) : [])])];
      const rows = all.filter((key) => key.includes(filter.value.trim())).filter((key) => {
        const changed = (known && differs(key, base)) || (other && differs(key, other.keys));
        return !only.checked || changed;
      }).map((key) => make("tr", {}, make("th", { scope: "row" }, key), make("td", { class: known && differs(key, base) ? "changed" : null }, said(keys[key])),
        known && make("td", {}, said(base[key])), other && make("td", { class: differs(key, other.keys) ? "changed" : null }, said(other.keys[key]))));
      const heads = ["key", "this run", known && (preset ? `preset ${preset}` : "default"), other && other.id].filter(Boolean);
      place.replaceChildren(rows.length ? table(heads, rows, "Configuration") : make("p", { class: "empty" }, "No difference."));
    }
    render();
    return make("div", {}, problem && make("p", { class: "said" }, problem), make("div", { class: "tools" }, make("label", {}, only, "Only differences"), filter, others.length > 0 && choose), place);
  }

  function data({ data: found, last }) {
    const counts = Object.entries(found.counts).map(([name, count]) => `${whole(count)} ${name}`).join(", ");
    const bad = last["train/bad_steps"];
    return make("div", {}, make("p", {}, counts ? `${counts}${found.path ? `, from ${found.path}` : ""}` : "data.json is missing or cannot be read."),
      found.notes.map((note) => make("p", {}, note)), bad ? make("p", { class: "said" }, `${whole(bad)} steps were not finite and were skipped; the console names their items.`) : null,
      make("h3", {}, found.skipped_count ? `${whole(found.skipped_count)} files were passed over` : "No file was passed over"),
      found.skipped.length > 0 && table(["file", "why"], found.skipped.map(([name, why]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, why))), "Files that were passed over"),
      found.skipped_count > found.skipped.length && make("p", {}, `and ${whole(found.skipped_count - found.skipped.length)} more in data.json`));
  }

  function checkpoints({ checkpoints: found, evaluated }) {
    const figures = Object.entries(evaluated);
    return make("div", {}, found.length ? table(["step", "size", "written", ""], [...found].reverse().map((each) => make("tr", {}, make("th", { scope: "row" }, whole(each.step)),
      make("td", {}, size(each.bytes)), make("td", {}, each.time ? ago(each.time) : "–"), make("td", {}, each.marks.map((mark) => make("span", { class: "chip" }, mark))))), "Checkpoints") : make("p", { class: "empty" }, "No checkpoint yet."),
    figures.length > 0 && [make("h3", {}, "Figures of quintet eval"), table(["figure", "value"], figures.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, quintet.number(value, 5)))), "Figures")]);
  }

  quintet.tables = { configuration, data, checkpoints };
})();
