// List of runs: sortable by any column, filtered by text, with live updates.
"use strict";

(function () {
  const { make, source, badge, integer, number, rate, timeLeft, ago, remember } = quintet;
  const ORDER = ["running", "failed", "stopped", "finished"];
  const COLUMNS = [
    { name: "Run", key: (run) => run.id, cell: (run) => make("a", { href: quintet.addressOf(run.id) }, run.id) },
    { name: "Recipe", key: (run) => run.recipe, cell: (run) => run.recipe || "–" },
    { name: "State", key: (run) => ORDER.indexOf(run.state), cell: (run) => badge(run.state, run.note) },
    { name: "Step", key: (run) => run.step, cell: (run) => progress(run) },
    { name: "Rate", key: (run) => run.rate ?? -1, cell: (run) => rate(run.rate) },
    { name: "Time left", key: (run) => run.left ?? Infinity, cell: (run) => timeLeft(run) ?? "–" },
    { name: "Best", key: (run) => run.best?.value ?? Infinity, cell: (run) => (run.best ? `${run.best.metric} ${number(run.best.value)}` : "–") },
    { name: "Device", key: (run) => run.device, cell: (run) => run.device || "–" },
    { name: "Last update", key: (run) => -(run.heartbeat ?? 0), cell: (run) => ago(run.heartbeat) },
  ];

  function progress(run) {
    const text = run.steps ? `${integer(run.step)} / ${integer(run.steps)}` : integer(run.step);
    return make("span", { class: "progress" }, text, run.steps ? make("progress", { max: run.steps, value: Math.min(run.step, run.steps), "aria-label": "Progress" }) : null);
  }

  class List {
    constructor(found) {
      this.runs = new Map(found.runs.map((run) => [run.id, run]));
      [this.column, this.down] = (remember("sort") || "Last update,").split(",");
      this.filter = make("input", { type: "search", placeholder: "Filter runs…", "aria-label": "Show runs with this text", value: remember("filter") || "", oninput: () => { remember("filter", this.filter.value); this.render(); } });
      this.order = make("select", { class: "narrow", "aria-label": "Sort by", onchange: () => this.sort(this.order.value) }, COLUMNS.map((column) => make("option", {}, column.name)));
      this.order.value = this.column;
      this.count = make("p", { class: "count", role: "status" });
      this.body = make("tbody", {});
      this.heads = COLUMNS.map((column) => make("th", { scope: "col" }, make("button", { type: "button", onclick: () => this.sort(column.name) }, column.name)));
      this.table = make("table", { class: "runs" }, make("thead", {}, make("tr", {}, this.heads)), this.body);
      this.panel = make("div", {}, make("h1", {}, found.title || "Runs"), make("div", { class: "tools" }, this.filter, this.order, this.count), this.table);
      this.render();
      this.stop = source.listen("", NaN, { runs: ({ changed, gone }) => this.update(changed, gone), outdated: () => this.reload(), gone: (text) => quintet.notice(text), back: () => this.reload() });
      this.clock = setInterval(() => this.render(), 30000);
    }

    async reload() {
      const found = await quintet.attempt(source.runs());
      if (!found) return;
      this.runs = new Map(found.runs.map((run) => [run.id, run]));
      this.render();
    }

    update(changed, gone) {
      for (const run of changed) this.runs.set(run.id, run);
      for (const id of gone) this.runs.delete(id);
      this.render();
    }

    sort(name) {
      this.down = this.column === name && !this.down ? "down" : "";
      this.column = name;
      remember("sort", `${this.column},${this.down}`);
      this.render();
    }

    render() {
      const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const column = COLUMNS.find((each) => each.name === this.column) || COLUMNS[0];
      const sign = this.down ? -1 : 1;
      const shown = [...this.runs.values()]
        .filter((run) => words.every((word) => [run.id, run.recipe, run.state, run.device, run.host].join(" ").toLowerCase().includes(word)))
        .sort((a, b) => { const [x, y] = [column.key(a), column.key(b)]; return sign * (x < y ? -1 : x > y ? 1 : 0) || a.id.localeCompare(b.id); });
      this.heads.forEach((head, at) => head.setAttribute("aria-sort", COLUMNS[at] !== column ? "none" : this.down ? "descending" : "ascending"));
      this.count.textContent = `${shown.length === this.runs.size ? "" : `${shown.length} of `}${this.runs.size} runs`;
      // Keep the keyboard focus on the same run.
      const focused = document.activeElement?.closest?.("tr")?.dataset.run;
      this.body.replaceChildren(...shown.map((run) => make("tr", { "data-run": run.id, onclick: (event) => { if (!event.target.closest("a") && !String(getSelection())) location.hash = quintet.addressOf(run.id); } },
        COLUMNS.map((each) => make("td", { "data-label": each.name }, each.cell(run))))));
      if (focused !== undefined) this.body.querySelector(`tr[data-run="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
      if (!this.runs.size) this.body.replaceChildren(make("tr", {}, make("td", { colspan: COLUMNS.length, class: "empty" }, "No runs yet. A run appears here as soon as `quintet train` starts.")));
    }

    close() {
      this.stop();
      clearInterval(this.clock);
    }
  }

  quintet.List = List;
})();
