// Source of the content: the server, or the data that an export wrote into the page.
"use strict";

(function () {
  const { notice } = quintet;

  class Served {
    constructor() {
      this.live = true;
    }

    async get(path, query, options) {
      const address = `${path}?${new URLSearchParams(query || {})}`;
      let answer;
      try {
        answer = await fetch(address, options);
      } catch {
        throw new Error("the server does not answer; is `quintet view` still running?");
      }
      if (!answer.ok) {
        const text = await answer.text();
        let problem = text;
        try { problem = JSON.parse(text).problem; } catch { /* it was plain text */ }
        throw new Error(problem || `the server answered with status ${answer.status}`);
      }
      return answer;
    }

    async json(path, query, options) {
      return (await this.get(path, query, options)).json();
    }

    runs() { return this.json("api/runs"); }
    run(id) { return this.json("api/run", { run: id }); }

    /** `complete`: wait until all rows are read, if there is only a sketch yet. */
    async curves(id, names, range, points, complete) {
      const found = {};
      for (let start = 0; start < names.length; start += 60) {
        const query = [["run", id], ["points", points], ...names.slice(start, start + 60).map((name) => ["name", name])];
        if (range) query.push(["from", range[0]], ["to", range[1]]);
        if (complete) query.push(["complete", ""]);
        Object.assign(found, await this.json("api/curves", query));
      }
      return found;
    }

    samples(id, step) { return this.json("api/samples", { run: id, step }); }
    media(id, step, file) { return `media?${new URLSearchParams({ run: id, step, file })}`; }
    async bytes(address) { return (await this.get(address.split("?")[0], address.split("?")[1])).arrayBuffer(); }

    generate(id, settings) {
      const headers = { "Content-Type": "application/json" };
      return this.json("api/generate", {}, { method: "POST", headers, body: JSON.stringify({ run: id, ...settings }) });
    }
    job(job) { return this.json("api/generate", { job }); }
    generated(job, file) { return `generated?${new URLSearchParams({ job, file })}`; }

    /** Listen to updates of a run, or of the list; returns a function that stops it. Calls `outdated` if the page has
     *  another version than the server, for example after an interrupted connection. */
    listen(id, version, handlers) {
      const events = new EventSource(`api/events?${new URLSearchParams(id ? { run: id } : {})}`);
      const names = ["rows", "reset", "summary", "samples", "console", "gone", "back", "runs"];
      for (const name of names) {
        events.addEventListener(name, (event) => handlers[name] && handlers[name](JSON.parse(event.data)));
      }
      events.addEventListener("hello", (event) => {
        if (JSON.parse(event.data).version !== version) handlers.outdated();
        version = NaN; // from now on, updates may be lost in any interruption
        pulse(true);
      });
      // A browser reconnects after an interruption, but not after a refusal.
      events.onerror = () => pulse(false, events.readyState === EventSource.CLOSED);
      return () => { events.close(); pulse(null); };
    }
  }

  /** Content in the page itself, or in scripts next to it: a page opened from a file may run files but not fetch them. */
  class Exported {
    constructor(content) {
      this.content = content;
      this.live = false;
      this.waiting = {};
      quintet.arrived = (name, text) => { this.waiting[name]?.(text); };
    }

    async runs() { return { title: this.content.title, read_only: true, runs: this.content.runs.map((run) => run.about.summary) }; }

    find(id) {
      const run = this.content.runs.find((each) => each.about.summary.id === id);
      if (!run) throw new Error("this run is not in the exported page");
      return run;
    }

    async run(id) { return this.find(id).about; }

    async curves(id, names) {
      const { curves } = this.find(id);
      return Object.fromEntries(names.filter((name) => curves[name]).map((name) => [name, curves[name]]));
    }

    async samples(id, step) { return this.find(id).samples[step] || []; }
    media(id, step, file) { return this.find(id).media[`${step}/${file}`] || ""; }

    async bytes(address) {
      if (address.startsWith("data:")) return decoded(address.slice(address.indexOf(",") + 1));
      const text = await new Promise((resolve, reject) => {
        this.waiting[address] = resolve;
        document.head.append(quintet.make("script", { src: `${address}.js`, onerror: () => reject(new Error(`${address} is missing`)) }));
      });
      return decoded(text);
    }

    listen() { return () => {}; }
  }

  function decoded(text) {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer;
  }

  function pulse(connected, refused) {
    const indicator = document.getElementById("pulse");
    indicator.className = connected === null ? "pulse" : connected ? "pulse on" : "pulse off";
    indicator.title = connected === null ? "" : connected ? "Connected: live updates" : refused ? "No live updates; reload the page" : "Disconnected; reconnecting";
  }

  /** The result of a promise, or undefined and a notice. */
  async function attempt(promise) {
    try {
      return await promise;
    } catch (error) {
      notice(error.message);
      return undefined;
    }
  }

  const embedded = document.getElementById("exported");
  quintet.source = embedded ? new Exported(JSON.parse(embedded.textContent)) : new Served();
  quintet.attempt = attempt;
})();
