// One chart: lines over steps, with the range of the values that each point combines, drawn by uPlot.
"use strict";

(function () {
  const { make, number, integer, colour } = quintet;
  const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7", "--line-8"];

  /** An exponential moving average without bias towards the first value; `weight` is the weight of the past. */
  function smooth(values, weight) {
    let [sum, total] = [0, 0];
    return values.map((value) => {
      sum = sum * weight + value;
      total = total * weight + 1;
      return sum / total;
    });
  }

  function visible(values, log) {
    return log ? values.map((value) => (value > 0 ? value : null)) : values;
  }

  /** Description of the chart for screen readers. */
  function describe(title, lines) {
    const parts = lines.filter((line) => line.steps.length).map((line) => {
      const last = line.steps.length - 1;
      const lowest = line.mean.reduce((best, value, at) => (value < line.mean[best] ? at : best), 0);
      return `${line.label}: ${number(line.mean[0])} at step ${integer(line.steps[0])}, ${number(line.mean[last])} at step ${integer(line.steps[last])}, lowest ${number(line.mean[lowest])} at step ${integer(line.steps[lowest])}`;
    });
    return `${title}. ${parts.join(". ") || "No values yet"}. Arrow keys move, plus and minus zoom, 0 shows all.`;
  }

  class Chart {
    /** `options`: smoothing, log, range; `moved` is called with a range of steps, or null for all. */
    constructor(title, options, moved) {
      this.title = title;
      this.options = options;
      this.moved = moved;
      this.lines = [];
      this.hidden = new Set();
      this.plot = null;
      this.area = make("div", { class: "area", tabindex: "0", role: "group", "aria-label": title, onkeydown: (event) => this.key(event) });
      this.figure = make("figure", { class: "chart" }, make("figcaption", {}, title), this.area);
      new ResizeObserver(() => this.resize()).observe(this.area);
    }

    /** Lines of {label, steps, mean, low, high, colour, dash, smoothed}. */
    show(lines) {
      this.lines = lines;
      this.draw();
    }

    /** uPlot keeps every chart with a shared cursor until it is destroyed. */
    destroy() {
      this.plot?.destroy();
      this.plot = null;
    }

    redraw(options) {
      this.options = options;
      if (this.lines.length) this.draw();
    }

    draw() {
      const { smoothing, log, range } = this.options;
      const tables = [];
      const series = [{ label: "step", value: (_, value) => (value === null || value === undefined ? "last" : integer(value)) }];
      const bands = [];
      this.lines.forEach((line, index) => {
        const stroke = line.colour || colour(COLOURS[index % COLOURS.length]);
        const common = { spanGaps: true, scale: "y", show: !this.hidden.has(line.label) };
        const averaged = smoothing > 0 && line.smoothed !== false && line.steps.length > 3;
        const spans = !averaged && line.low && this.lines.length <= 4;
        if (spans) {
          bands.push({ series: [series.length + 1, series.length], fill: `${stroke}2e` });
          tables.push([line.steps, visible(line.low, log)], [line.steps, visible(line.high, log)]);
          for (let edge = 0; edge < 2; edge += 1) series.push({ ...common, label: line.label, class: "unlisted", width: 0, points: { show: false } });
        }
        if (averaged) {
          tables.push([line.steps, visible(line.mean, log)]);
          series.push({ ...common, label: line.label, class: "unlisted", stroke: `${stroke}48`, width: 1, points: { show: false } });
        }
        tables.push([line.steps, visible(averaged ? smooth(line.mean, smoothing) : line.mean, log)]);
        series.push({ ...common, label: line.label, stroke, width: 1.6, dash: line.dash, points: { show: line.steps.length < 40, size: 4 }, value: (_, value, at, index) => number(index === null ? line.mean[line.mean.length - 1] : value) });
      });
      const data = tables.length ? uPlot.join(tables) : [[]];
      const steps = data[0];
      const full_range = steps.length ? [steps[0], steps[steps.length - 1]] : [0, 1];
      const scales = {
        x: { time: false, range: () => range || (full_range[0] === full_range[1] ? [full_range[0] - 1, full_range[1] + 1] : full_range) },
        // The default range of a constant line would be far too large.
        y: { distr: log ? 3 : 1, ...(log ? {} : { range: (_, low, high) => (low === null ? [null, null] : low === high ? [low - 1, high + 1] : uPlot.rangeNum(low, high, 0.1, true)) }) },
      };
      const axis = { stroke: colour("--faint"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: "11px system-ui, sans-serif" };
      const opts = {
        width: Math.max(this.area.clientWidth, 160), height: 210, series, bands, scales,
        axes: [{ ...axis, size: 30, values: (_, values) => values.map(compact) }, { ...axis, size: 56, values: (_, values) => values.map((value) => (value === null ? "" : number(value, 3))) }],
        cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
        legend: { live: true },
        hooks: { draw: [(plot) => this.drawn(plot)], setSelect: [(plot) => this.selected(plot)], setSeries: [(plot, at) => this.toggled(plot, at)] },
      };
      this.destroy();
      this.area.replaceChildren();
      this.plot = new uPlot(opts, data, this.area);
      this.plot.over.addEventListener("dblclick", () => this.moved(null));
      this.area.setAttribute("aria-label", describe(this.title, this.lines));
      this.plot.ctx.canvas.setAttribute("aria-hidden", "true");
      for (const label of this.area.querySelectorAll(".u-series:not(.unlisted):not(:first-child) > th")) this.makeButton(label);
    }

    drawn(plot) {
      this.area.dataset.points = String(this.lines.reduce((sum, line) => sum + line.steps.length, 0));
      this.area.dataset.range = `${Math.round(plot.scales.x.min)}-${Math.round(plot.scales.x.max)}`;
    }

    /** Make a legend entry, which shows or hides a line, usable from the keyboard. */
    makeButton(label) {
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.setAttribute("aria-pressed", String(!label.parentElement.classList.contains("u-off")));
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        label.click();
      });
      label.addEventListener("click", () => label.setAttribute("aria-pressed", String(!label.parentElement.classList.contains("u-off"))));
    }

    selected(plot) {
      if (plot.select.width < 4) return;
      const range = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.moved(range);
    }

    /** A line and its span go together. */
    toggled(plot, at) {
      if (at === null || this.toggling) return;
      this.toggling = true;
      const { label, show } = plot.series[at];
      this.hidden[show ? "delete" : "add"](label);
      plot.series.forEach((each, other) => { if (other && each.label === label && each.show !== show) plot.setSeries(other, { show }); });
      this.toggling = false;
    }

    key(event) {
      if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
      const { min, max } = this.plot.scales.x;
      const width = max - min;
      const moves = {
        ArrowLeft: () => [min - width / 5, max - width / 5], ArrowRight: () => [min + width / 5, max + width / 5],
        "+": () => [min + width / 5, max - width / 5], "-": () => [min - width / 3, max + width / 3], 0: () => null, Escape: () => null,
      };
      if (!moves[event.key]) return;
      event.preventDefault();
      this.moved(moves[event.key]());
    }

    resize() {
      if (this.plot && this.area.clientWidth && Math.abs(this.plot.width - this.area.clientWidth) > 1) {
        this.plot.setSize({ width: this.area.clientWidth, height: 210 });
      }
    }
  }

  function compact(value) {
    if (Math.abs(value) >= 1e6) return `${number(value / 1e6, 3)}M`;
    return Math.abs(value) >= 1e4 ? `${number(value / 1e3, 3)}k` : number(value, 5);
  }

  quintet.Chart = Chart;
  quintet.lineColour = (index) => colour(COLOURS[index % COLOURS.length]);
})();
