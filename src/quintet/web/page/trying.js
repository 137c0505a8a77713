// Owns the try-it box: a text and a few numbers go to the server, samples come back, one wish at a time.
"use strict";

(function () {
  const { make, source, notice, duration } = quintet;
  const LONGEST_TEXT = 500;

  function panel(id, about) {
    const { guidance, steps } = about.trying;
    const field = (label, attributes) => { const input = make("input", { type: "number", ...attributes }); return [make("label", {}, label, input), input]; };
    const text = make("textarea", { rows: "2", maxlength: String(LONGEST_TEXT), placeholder: "What it should make" });
    const [seedLabel, seed] = field("Seed", { value: "0", min: "0", max: "2147483647", step: "1" });
    const [numLabel, num] = field("How many", { value: "4", min: "1", max: "8", step: "1" });
    const [guidanceLabel, strength] = field("Guidance", { value: String(guidance ?? 1), min: "0", max: "100", step: "any" });
    const [stepsLabel, count] = field("Steps", { value: String(steps ?? ""), min: "1", max: "1000", step: "1" });
    const button = make("button", { type: "submit", class: "main" }, "Make");
    const said = make("p", { role: "status" });
    const results = make("div", {});
    const form = make("form", { class: "try", onsubmit: (event) => { event.preventDefault(); send(); } },
      make("label", { class: "wide" }, "Text", text),
      make("div", { class: "tools" }, seedLabel, numLabel, guidance !== null && guidanceLabel, steps !== null && stepsLabel, button), said);

    async function send() {
      button.disabled = true;
      notice("");
      const began = Date.now();
      const wish = { text: text.value, seed: Number(seed.value), num: Number(num.value) };
      if (guidance !== null && strength.value) wish.guidance = Number(strength.value);
      if (steps !== null && count.value) wish.steps = Number(count.value);
      try {
        let job = await source.wish(id, wish);
        while (job.state === "working") {
          said.textContent = `Working for ${duration((Date.now() - began) / 1000)}; the first takes longer, while the model is read.`;
          await new Promise((resolve) => setTimeout(resolve, 500));
          job = await source.job(job.job);
        }
        said.textContent = job.state === "done" ? `Made in ${duration((Date.now() - began) / 1000)}.` : job.message;
        if (job.state === "done") show(job, wish);
      } catch (error) {
        said.textContent = error.message;
      }
      button.disabled = false;
    }

    function show(job, wish) {
      const single = job.entries.filter((entry) => !entry.texts);
      const entries = [...single, ...job.entries.filter((entry) => entry.texts)];
      const words = Object.entries(wish).filter(([name]) => name !== "text").map(([name, value]) => `${name} ${value}`).join(", ");
      results.prepend(make("section", {}, make("h3", {}, wish.text || "without a text"), make("p", {}, words),
        make("div", { class: "samples" }, entries.map((entry) => quintet.media.card(entry, source.made(job.job, entry.file)).figure))));
    }

    return make("div", {}, form, results);
  }

  quintet.trying = { panel };
})();
