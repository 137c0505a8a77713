// Tables of a run: its keys next to those of its preset and of another run, its data, and its checkpoints.
"use strict";

(function () {
  const { make, source, attempt, integer, size, ago } = quintet;

  function format(value) {
    return value === undefined ? "" : value === null ? "null" : typeof value === "string" ? value : JSON.stringify(value);
  }

  function table(heads, rows, label) {
    return make("div", { class: "scroll" }, make("table", { class: "plain", "aria-label": label },
      make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, rows)));
  }

  function configuration(about, others) {
    const { keys, preset, preset_keys: base, problem } = about.config;
    const container = make("div", {});
    const only = make("input", { type: "checkbox", checked: true, onchange: () => render() });
    const filter = make("input", { type: "search", placeholder: "Filter keys…", "aria-label": "Show keys with this text", oninput: () => render() });
    let other = null;
    const choose = make("select", { "aria-label": "Compare with another run", onchange: async () => {
      const found = choose.value ? await attempt(source.run(choose.value)) : null;
      other = found ? { id: choose.value, keys: found.config.keys } : null;
      render();
    } }, make("option", { value: "" }, "Compare with…"), others.map((id) => make("option", { value: id }, id)));
    const known = Object.keys(base).length > 0;
    const differs = (key, from) => from && format(keys[key]) !== format(from[key]);
    function render() {
      const all = [...new Set([...Object.keys(keys), ...(other ? Object.keys(other.keys) : [])])];
      const rows = all.filter((key) => key.includes(filter.value.trim())).filter((key) => {
        const changed = (known && differs(key, base)) || (other && differs(key, other.keys));
        return !only.checked || changed;
      }).map((key) => make("tr", {}, make("th", { scope: "row" }, key), make("td", { class: known && differs(key, base) ? "changed" : null }, format(keys[key])),
        known && make("td", {}, format(base[key])), other && make("td", { class: differs(key, other.keys) ? "changed" : null }, format(other.keys[key]))));
      const heads = ["key", "this run", known && (preset ? `preset ${preset}` : "default"), other && other.id].filter(Boolean);
      container.replaceChildren(rows.length ? table(heads, rows, "Configuration") : make("p", { class: "empty" }, "No differences."));
    }
    render();
    return make("div", {}, problem && make("p", { class: "problem" }, problem), make("div", { class: "tools" }, make("label", {}, only, "Only differences"), filter, others.length > 0 && choose), container);
  }

  function data({ data: found, last }) {
    const counts = Object.entries(found.counts).map(([name, count]) => `${integer(count)} ${name}`).join(", ");
    const bad = last["train/bad_steps"];
    return make("div", {}, make("p", {}, counts ? `${counts}${found.path ? `, from ${found.path}` : ""}` : "data.json is missing or cannot be read."),
      found.notes.map((note) => make("p", {}, note)), bad ? make("p", { class: "problem" }, `${integer(bad)} steps had non-finite values and were skipped; the console names their items.`) : null,
      make("h3", {}, found.skipped_count ? `${integer(found.skipped_count)} files were skipped` : "No files were skipped"),
      found.skipped.length > 0 && table(["file", "reason"], found.skipped.map(([name, reason]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, reason))), "Skipped files"),
      found.skipped_count > found.skipped.length && make("p", {}, `and ${integer(found.skipped_count - found.skipped.length)} more in data.json`));
  }

  function checkpoints({ checkpoints: found, evaluated }) {
    const metrics = Object.entries(evaluated);
    return make("div", {}, found.length ? table(["step", "size", "written", ""], [...found].reverse().map((each) => make("tr", {}, make("th", { scope: "row" }, integer(each.step)),
      make("td", {}, size(each.bytes)), make("td", {}, each.time ? ago(each.time) : "–"), make("td", {}, each.marks.map((mark) => make("span", { class: "chip" }, mark))))), "Checkpoints") : make("p", { class: "empty" }, "No checkpoint yet."),
    metrics.length > 0 && [make("h3", {}, "Metrics of quintet eval"), table(["metric", "value"], metrics.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, quintet.number(value, 5)))), "Metrics")]);
  }

  quintet.tables = { configuration, data, checkpoints };
})();
