// Page of one run: its summary, its tabs, and their live updates.
"use strict";

(function () {
  const { make, source, attempt, badge, integer, number, rate, perSecond, timeLeft, ago, notice } = quintet;

  const REBUILT_TABS = ["codes", "data", "checkpoints"];

  class RunPage {
    constructor(id, about, others, tab) {
      this.id = id;
      this.about = about;
      this.others = others.filter((other) => other !== id);
      this.curves = new quintet.Curves(id, this.others);
      this.samples = new quintet.Samples(id);
      this.facts = make("dl", { class: "facts" });
      this.console = make("pre", { class: "console", tabindex: "0", "aria-label": "End of the console output" });
      this.tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the run" });
      this.content = make("div", { role: "tabpanel", class: "content", tabindex: "-1" });
      this.title = make("h1", {}, id);
      this.panel = make("div", {}, make("div", { class: "title" }, this.title), this.facts, this.tabs, this.content);
      this.curves.hint.hidden = !about.sketched;
      this.curves.update(Object.keys(about.metrics));
      this.samples.update(about.sample_steps);
      this.summarize(about.summary);
      this.log(about.console);
      this.addTabs();
      this.open(tab || (about.sample_steps.length ? "samples" : "curves"));
      this.stop = source.listen(id, about.version, {
        rows: (rows) => this.rows(rows),
        reset: () => this.reload(),
        outdated: () => this.reload(),
        back: () => { notice(""); this.reload(); },
        summary: (summary) => {
          const changed = summary.state !== this.about.summary.state;
          this.summarize(summary);
          if (changed) this.reload(); // the checkpoints, and whether the playground is available
        },
        samples: (steps) => { this.samples.update(steps); },
        console: (text) => this.log(text),
        gone: (text) => notice(`${text}; this page shows the last known content`),
      });
    }

    parts() {
      const { about } = this;
      return {
        samples: ["Samples", () => this.samples.panel],
        curves: ["Curves", () => this.curves.panel],
        codes: quintet.codes.has(about) && ["Codes", () => quintet.codes.panel(this.id, this.about)],
        try: source.live && about.playground && ["Try it", () => (this.box ??= quintet.playground.panel(this.id, about))],
        config: ["Configuration", () => quintet.tables.configuration(this.about, this.others)],
        data: [about.data.skipped_count ? `Data (${integer(about.data.skipped_count)} skipped)` : "Data", () => quintet.tables.data(this.about)],
        checkpoints: ["Checkpoints", async () => quintet.tables.checkpoints((await attempt(source.run(this.id))) || this.about)],
        console: ["Console", () => this.console],
      };
    }

    addTabs() {
      const focused = this.tabs.contains(document.activeElement);
      this.tabs.replaceChildren(...Object.entries(this.parts()).filter(([, part]) => part).map(([name, [label]]) => make("button", {
        type: "button", role: "tab", id: `tab-${name}`, "data-tab": name, "aria-controls": "content", onclick: () => this.open(name), onkeydown: (event) => this.key(event),
      }, label)));
      this.content.id = "content";
      this.mark();
      if (focused) this.tabs.querySelector("[aria-selected=true]")?.focus();
    }

    key(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      const tabs = [...this.tabs.children];
      const next = tabs[(tabs.indexOf(event.target) + move + tabs.length) % tabs.length];
      next.focus();
      this.open(next.dataset.tab);
    }

    async open(name) {
      const part = this.parts()[name] || this.parts().curves;
      this.tab = this.parts()[name] ? name : "curves";
      this.mark();
      history.replaceState(null, "", quintet.addressOf(this.id, this.tab));
      const opened = this.tab;
      const content = await part[1]();
      if (opened !== this.tab) return;
      this.content.replaceChildren(content);
      if (this.tab === "console") this.console.scrollTop = this.console.scrollHeight;
    }

    mark() {
      for (const tab of this.tabs.children) {
        const chosen = tab.dataset.tab === this.tab;
        tab.setAttribute("aria-selected", String(chosen));
        tab.tabIndex = chosen ? 0 : -1;
        if (chosen) this.content.setAttribute("aria-labelledby", tab.id);
      }
    }

    summarize(summary) {
      this.about.summary = summary;
      this.title.replaceChildren(this.id, " ", badge(summary.state, summary.note));
      const facts = {
        Recipe: `${summary.recipe}${this.about.config.preset ? `, ${this.about.config.preset}` : ""}`,
        Step: summary.steps ? `${integer(summary.step)} of ${integer(summary.steps)}` : integer(summary.step),
        Rate: [rate(summary.rate), ...perSecond(summary.rates)].join(", "),
        "Time left": timeLeft(summary),
        Best: summary.best ? `${summary.best.metric} ${number(summary.best.value)} at step ${integer(summary.best.step)}` : null,
        Device: [summary.device, summary.host].filter(Boolean).join(" on ") || null,
        "Last update": ago(summary.heartbeat),
      };
      this.facts.replaceChildren(...Object.entries(facts).filter(([, value]) => value).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
        ...(summary.note ? [make("div", { class: "note" }, make("dt", {}, "Note"), make("dd", {}, summary.note))] : []));
    }

    rows(rows) {
      for (const row of rows) {
        for (const [name, value] of Object.entries(row)) if (typeof value === "number" && name !== "step" && name !== "time") this.about.metrics[name] = (this.about.metrics[name] || 0) + 1;
      }
      this.curves.update(Object.keys(this.about.metrics));
      this.curves.add(rows);
    }

    log(text) {
      const atEnd = this.console.scrollHeight - this.console.scrollTop - this.console.clientHeight < 40;
      this.console.textContent = text || "No output yet.";
      if (atEnd) this.console.scrollTop = this.console.scrollHeight;
    }

    /** Load everything again: the metrics were rewritten, updates were missed, or the run has ended or continued. */
    async reload() {
      const about = await attempt(source.run(this.id));
      if (!about || this.closed) return;
      this.about = about;
      this.curves.hint.hidden = !about.sketched;
      this.curves.update(Object.keys(about.metrics));
      this.curves.reload();
      this.samples.update(about.sample_steps);
      this.summarize(about.summary);
      this.log(about.console);
      this.addTabs();
      // Rebuild only tabs without user input; "Try it" disappears when a run continues.
      if (REBUILT_TABS.includes(this.tab) || !this.parts()[this.tab]) this.open(this.tab);
    }

    close() {
      this.closed = true;
      this.stop();
      this.samples.play(false);
      this.curves.close();
    }
  }

  quintet.RunPage = RunPage;
})();
