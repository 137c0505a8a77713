// Samples of a run: a slider over the steps of training, and the same cards at each step.
"use strict";

(function () {
  const { make, source, attempt, integer } = quintet;
  const CHUNK = 48;
  const PLAY_MILLISECONDS = 700;

  class Samples {
    constructor(id) {
      this.id = id;
      this.steps = [];
      this.at = -1;
      this.weights = "";
      this.cards = new Map();
      this.slider = make("input", { type: "range", min: "0", step: "1", "aria-label": "Step of training", oninput: () => this.go(Number(this.slider.value)) });
      this.position = make("output", {});
      this.player = make("button", { type: "button", "aria-pressed": "false", onclick: () => this.play(!this.timer) }, "▶ Play");
      this.kind = make("select", { "aria-label": "Weights", hidden: true, onchange: () => { this.weights = this.kind.value; this.cards.clear(); this.render(); } },
        make("option", { value: "" }, "averaged weights"), make("option", { value: "live-" }, "live weights"));
      this.filter = make("input", { type: "search", placeholder: "Filter captions…", "aria-label": "Show samples with this text", hidden: true, oninput: () => this.render() });
      this.grid = make("div", { class: "samples" });
      this.end = make("div", { class: "end" });
      this.tools = make("div", { class: "tools" }, this.player, make("label", { class: "wide" }, "Step", this.slider), this.position, this.kind, this.filter);
      this.panel = make("div", {}, this.tools, this.grid, this.end);
      this.entries = [];
      new IntersectionObserver((seen) => { if (seen.some((each) => each.isIntersecting)) this.more(); }, { rootMargin: "600px" }).observe(this.end);
    }

    /** Set the steps. A viewer of the newest step moves on to the next one; a viewer of an older step stays there. */
    update(steps) {
      const newest = this.at < 0 || this.at === this.steps.length - 1;
      const grown = steps.length !== this.steps.length || newest;
      this.steps = steps;
      this.slider.max = String(Math.max(0, steps.length - 1));
      this.tools.hidden = steps.length === 0;
      if (!steps.length) this.grid.replaceChildren(make("p", { class: "empty" }, "No samples yet. The first samples appear after sample.every steps."));
      else if (grown) this.go(newest ? steps.length - 1 : Math.min(this.at, steps.length - 1), true);
    }

    async go(at, force) {
      if (at === this.at && !force) return;
      this.at = at;
      const step = this.steps[at];
      this.slider.value = String(at);
      this.slider.setAttribute("aria-valuetext", `step ${step}`);
      this.position.textContent = `${integer(step)} (${at + 1} of ${this.steps.length})`;
      const entries = await attempt(source.samples(this.id, step));
      if (entries && step === this.steps[this.at]) {
        this.entries = entries;
        this.step = step;
        this.render();
      }
    }

    shown() {
      const query = this.filter.value.trim().toLowerCase();
      const all = this.entries.filter((entry) => entry.file.startsWith("live-") === (this.weights === "live-"));
      // Audio, videos and meshes come before images, which may only be overviews of them.
      all.sort((a, b) => (a.kind === "image") - (b.kind === "image"));
      return query ? all.filter((entry) => [entry.file, quintet.media.captionOf(entry)].some((text) => text.toLowerCase().includes(query))) : all;
    }

    render() {
      this.kind.hidden = !this.entries.some((entry) => entry.file.startsWith("live-"));
      this.filter.hidden = this.entries.length <= 24;
      this.list = this.shown();
      const before = Math.max(this.count || 0, CHUNK);
      this.count = 0;
      this.grid.replaceChildren();
      if (!this.list.length) this.grid.append(make("p", { class: "empty" }, "No samples at this step."));
      this.more(before);
    }

    /** Add the next cards; a step may have ten thousand. */
    more(count = CHUNK) {
      if (!this.list || this.count >= this.list.length) return;
      const next = this.list.slice(this.count, this.count + count);
      this.count += next.length;
      this.grid.append(...next.map((entry) => {
        const address = source.media(this.id, this.step, entry.file);
        const known = this.cards.get(`${entry.kind} ${entry.file}`);
        if (known) known.show(entry, address);
        const card = known || quintet.media.card(entry, address);
        if (this.cards.size < 500) this.cards.set(`${entry.kind} ${entry.file}`, card);
        return card.figure;
      }));
      // If few cards fit, the end is still visible, and the observer only reports changes.
      requestAnimationFrame(() => { if (this.end.getBoundingClientRect().top < innerHeight + 600 && this.panel.isConnected) this.more(); });
    }

    play(on) {
      clearInterval(this.timer);
      this.timer = null;
      this.player.setAttribute("aria-pressed", String(on));
      this.player.textContent = on ? "■ Stop" : "▶ Play";
      if (!on) return;
      if (this.at === this.steps.length - 1) this.go(0);
      this.timer = setInterval(() => {
        if (this.at < this.steps.length - 1 && this.panel.isConnected) this.go(this.at + 1);
        else this.play(false);
      }, PLAY_MILLISECONDS);
    }
  }

  quintet.Samples = Samples;
})();
