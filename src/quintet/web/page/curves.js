// Curves of a run: grouping of metrics into charts, and requests to the server when charts become visible, are zoomed or
// get new rows.
"use strict";

(function () {
  const { make, source, attempt, whenSeen, Chart, lineColour } = quintet;
  const POINTS = 400;
  const SECTIONS = ["Loss", "Validation", "Codebook", "Optimizer", "Speed"];

  /** The parts of a metric name: {side, phase, name, level}. */
  function parse(metric) {
    const parts = metric.split("/");
    const side = ["train", "validation"].includes(parts[0]) ? parts.shift() : "";
    const live = side === "validation" && parts[0] === "live" && Boolean(parts.shift());
    const numbered = /^(.+?)_(?:level_)?(\d+)$/.exec(parts[parts.length - 1]);
    const name = numbered ? numbered[1] : parts[parts.length - 1];
    return { metric, side, live, phase: parts.slice(0, -1).join("/"), name, level: numbered ? Number(numbered[2]) : null, by: /_level_\d+$/.test(metric) ? "level" : "number" };
  }

  function sectionOf({ side, phase, name }) {
    if (phase === "rate" || phase === "time" || name === "bad_steps") return "Speed";
    if (name === "lr" || name === "gradient_norm") return "Optimizer";
    if (name.startsWith("codebook")) return "Codebook";
    return side === "train" || name.includes("loss") ? "Loss" : "Validation";
  }

  /** Group metrics into charts: training and validation of the same name, and all numbered metrics of the same name. */
  function group(metrics) {
    const parsed = metrics.map(parse);
    const trained = parsed.filter((each) => each.side === "train");
    const charts = new Map();
    for (const each of parsed) {
      let phase = each.phase;
      if (each.side === "validation" && !phase) {
        const partners = trained.filter((other) => other.name === each.name && other.level === each.level);
        const partner = partners.find((other) => other.phase !== "discriminator") || partners[0];
        phase = partner ? partner.phase : "";
      }
      const key = `${phase ? `${phase}/` : ""}${each.name}${each.level === null ? "" : ` by ${each.by}`}`;
      if (!charts.has(key)) charts.set(key, { title: key, section: sectionOf({ ...each, phase }), metrics: [] });
      const chart = charts.get(key);
      if (each.side === "train" && chart.section === "Validation") chart.section = sectionOf(each);
      chart.metrics.push(each);
    }
    return [...charts.values()].sort((a, b) => SECTIONS.indexOf(a.section) - SECTIONS.indexOf(b.section) || rank(a) - rank(b) || a.title.localeCompare(b.title));
  }

  function rank({ metrics, title }) {
    const both = metrics.some((each) => each.side === "train") && metrics.some((each) => each.side === "validation");
    return (both ? 0 : 2) + (title.endsWith("loss") ? 0 : 1) + (title.startsWith("discriminator") ? 3 : 0);
  }

  function identity({ title, metrics }) {
    return [title, ...metrics.map((each) => each.metric)].join("\n");
  }

  class Curves {
    constructor(id, others) {
      this.id = id;
      this.range = null;
      this.smoothing = Number(quintet.remember("smoothing") || 0);
      this.log = false;
      this.compared = [];
      this.charts = [];
      this.values = new Map(); // run -> metric -> points
      this.container = make("div", { class: "charts" });
      this.hint = make("p", { class: "count", role: "status", hidden: true }, "Preview: all rows are still being read.");
      this.panel = make("div", {}, this.tools(others), this.hint, this.container);
    }

    tools(others) {
      const slider = make("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(this.smoothing), oninput: () => {
        this.smoothing = Number(slider.value);
        quintet.remember("smoothing", slider.value);
        this.redraw();
      } });
      const log = make("input", { type: "checkbox", onchange: () => { this.log = log.checked; this.redraw(); } });
      this.filter = make("input", { type: "search", placeholder: "Filter metrics…", "aria-label": "Show metrics with this text", oninput: () => this.applyFilter() });
      this.reset = make("button", { type: "button", disabled: true, onclick: () => this.zoom(null) }, "Show all steps");
      const chosen = make("span", { class: "chosen" });
      const choose = make("select", { "aria-label": "Compare with another run", onchange: () => {
        if (choose.value) this.compare([...this.compared, choose.value], chosen);
        choose.value = "";
      } }, make("option", { value: "" }, "Compare with…"), others.map((id) => make("option", { value: id }, id)));
      return make("div", { class: "tools" },
        make("label", {}, "Smoothing", slider), make("label", {}, log, "Log scale"), this.filter, this.reset,
        others.length > 0 && choose, chosen);
    }

    compare(ids, chosen) {
      this.compared = [...new Set(ids)].slice(0, 7);
      chosen.replaceChildren(...[this.id, ...this.compared].map((id, at) => make("span", { class: "chip" }, dot(at), id,
        at > 0 && make("button", { type: "button", class: "quiet", "aria-label": `Stop comparing with ${id}`, onclick: () => this.compare(this.compared.filter((other) => other !== id), chosen) }, "×"))));
      if (!this.compared.length) chosen.replaceChildren();
      this.load();
    }

    /** Update the charts to these metrics; existing charts keep their content. */
    update(metrics) {
      const known = new Set(this.charts.flatMap((each) => each.metrics.map((metric) => metric.metric)));
      if (metrics.length && metrics.every((metric) => known.has(metric))) return;
      const before = new Map(this.charts.map((each) => [identity(each), each]));
      this.charts = group(metrics).map((each) => before.get(identity(each)) || this.added(each));
      for (const each of before.values()) if (!this.charts.includes(each)) each.chart.destroy();
      const sections = SECTIONS.map((name) => [name, this.charts.filter((each) => each.section === name)]).filter(([, charts]) => charts.length);
      this.container.replaceChildren(...sections.map(([name, charts]) => make("section", {}, make("h3", {}, name), make("div", { class: "grid" }, charts.map((each) => each.chart.figure)))));
      if (!sections.length) this.container.replaceChildren(make("p", { class: "empty" }, "No metrics yet. The first row appears after log.every steps."));
      this.applyFilter();
    }

    added(each) {
      const chart = new Chart(each.title, this.options(), (range) => this.zoom(range));
      const added = { ...each, seen: false, chart };
      whenSeen(chart.figure, () => { added.seen = true; this.load(); });
      return added;
    }

    /** Show only charts that match the filter. */
    applyFilter() {
      const query = this.filter.value.trim();
      for (const { title, metrics, chart } of this.charts) chart.figure.hidden = ![title, ...metrics.map((each) => each.metric)].some((text) => text.includes(query));
    }

    close() {
      for (const each of this.charts) each.chart.destroy();
      this.charts = [];
    }

    options() {
      return { smoothing: this.smoothing, log: this.log, range: this.range };
    }

    redraw() {
      for (const each of this.charts) if (each.seen) each.chart.redraw(this.options());
    }

    zoom(range) {
      this.range = range && range[1] - range[0] > 1e-9 ? range : null;
      this.reset.disabled = this.range === null;
      this.load();
    }

    /** Request the data of all visible charts at once. */
    load() {
      this.timer ??= setTimeout(async () => {
        this.timer = null;
        const seen = this.charts.filter((each) => each.seen);
        const names = seen.flatMap((each) => each.metrics.map((metric) => metric.metric));
        if (!names.length) return;
        const ids = [this.id, ...this.compared];
        const range = this.range;
        const found = await Promise.all(ids.map((id) => attempt(source.curves(id, names, range, POINTS, id !== this.id))));
        if (range !== this.range) return;
        ids.forEach((id, at) => this.values.set(id, { ...this.values.get(id), ...found[at] }));
        for (const each of seen) if (this.charts.includes(each)) this.fill(each); // removed charts are skipped
      }, 30);
    }

    fill(each) {
      const several = this.compared.length > 0;
      const levels = each.metrics.some((metric) => metric.level !== null);
      const sorted = [...each.metrics].sort((a, b) => (a.side > b.side) - (a.side < b.side) || a.live - b.live || a.level - b.level);
      const visible = sorted.filter((metric) => !(several || levels) || !metric.live);
      const lines = [this.id, ...this.compared].flatMap((id, run) => visible.map((metric, at) => {
        const points = (this.values.get(id) || {})[metric.metric];
        const name = metric.level === null ? metric.metric : `${metric.level}`;
        return points && {
          ...points, run: id, metric: metric.metric, label: several ? `${id} · ${name}` : name, smoothed: metric.side === "train",
          colour: several ? lineColour(run) : levels ? shade(at, visible.length) : undefined, dash: metric.live ? [3, 3] : several && metric.side === "validation" ? [7, 3] : undefined,
        };
      })).filter(Boolean);
      each.chart.options = this.options();
      each.chart.show(lines);
    }

    /** Append new rows of the run. If the charts are zoomed, rows outside of the range stay invisible. */
    add(rows) {
      const known = this.values.get(this.id);
      if (!known) return;
      const touched = new Set();
      for (const row of rows) {
        for (const [name, value] of Object.entries(row)) {
          const points = known[name];
          if (!points || typeof value !== "number" || row.step <= points.steps[points.steps.length - 1]) continue;
          points.steps.push(row.step);
          points.mean.push(value);
          if (points.low) { points.low.push(value); points.high.push(value); }
          touched.add(name);
        }
      }
      if (Object.values(known).some((points) => points.steps.length > 2 * POINTS)) { this.load(); return; }
      for (const each of this.charts) if (each.seen && each.metrics.some((metric) => touched.has(metric.metric))) this.fill(each);
    }

    reload() {
      this.values.clear();
      this.load();
    }
  }

  /** The color of one of many ordered lines, from blue to red. */
  function shade(at, count) {
    const part = count > 1 ? at / (count - 1) : 0;
    const channels = [60 + 170 * part, 120 + 60 * Math.sin(Math.PI * part), 235 - 180 * part];
    return `#${channels.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("")}`;
  }

  function dot(at) {
    const mark = make("i", { class: "dot" });
    mark.style.background = lineColour(at);
    return mark;
  }

  quintet.Curves = Curves;
})();
