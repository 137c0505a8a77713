// Audio player with a spectrogram; a click on the spectrogram plays from that time.
"use strict";

(function () {
  const { make, heat } = quintet;
  const SIZE = 1024;
  const WIDTH = 560;
  const HEIGHT = 128;

  async function decode(buffer) {
    const context = new OfflineAudioContext(1, 1, 44100);
    const audio = await context.decodeAudioData(buffer);
    const mixed = new Float32Array(audio.length);
    for (let channel = 0; channel < audio.numberOfChannels; channel += 1) {
      const wave = audio.getChannelData(channel);
      for (let at = 0; at < wave.length; at += 1) mixed[at] += wave[at] / audio.numberOfChannels;
    }
    return { wave: mixed, rate: audio.sampleRate };
  }

  const hann = Float32Array.from({ length: SIZE }, (_, at) => 0.5 - 0.5 * Math.cos((2 * Math.PI * at) / SIZE));
  const cosines = Float32Array.from({ length: SIZE / 2 }, (_, at) => Math.cos((2 * Math.PI * at) / SIZE));
  const sines = Float32Array.from({ length: SIZE / 2 }, (_, at) => Math.sin((2 * Math.PI * at) / SIZE));

  /** Fast Fourier transform in place (radix 2). */
  function transform(real, imaginary) {
    for (let at = 1, other = 0; at < SIZE; at += 1) {
      let bit = SIZE >> 1;
      for (; other & bit; bit >>= 1) other ^= bit;
      other ^= bit;
      if (at < other) [real[at], real[other]] = [real[other], real[at]];
    }
    for (let length = 2; length <= SIZE; length <<= 1) {
      const stride = SIZE / length;
      for (let start = 0; start < SIZE; start += length) {
        for (let at = 0; at < length / 2; at += 1) {
          const [c, s] = [cosines[at * stride], -sines[at * stride]];
          const [low, high] = [start + at, start + at + length / 2];
          const [x, y] = [real[high] * c - imaginary[high] * s, real[high] * s + imaginary[high] * c];
          [real[high], imaginary[high]] = [real[low] - x, imaginary[low] - y];
          [real[low], imaginary[low]] = [real[low] + x, imaginary[low] + y];
        }
      }
    }
  }

  /** Mel spectrogram in decibels, column by column, from low to high frequencies. */
  function spectrogram(wave, rate) {
    const mel = (hertz) => 2595 * Math.log10(1 + hertz / 700);
    const top = mel(Math.min(rate / 2, 12000));
    const bins = Array.from({ length: HEIGHT + 1 }, (_, row) => (700 * (10 ** ((top * row) / HEIGHT / 2595) - 1) * SIZE) / rate);
    const cells = new Float32Array(WIDTH * HEIGHT);
    const real = new Float32Array(SIZE);
    const imaginary = new Float32Array(SIZE);
    for (let column = 0; column < WIDTH; column += 1) {
      const start = Math.round((column / WIDTH) * wave.length) - SIZE / 2;
      for (let at = 0; at < SIZE; at += 1) real[at] = (wave[start + at] || 0) * hann[at];
      imaginary.fill(0);
      transform(real, imaginary);
      for (let row = 0; row < HEIGHT; row += 1) {
        const first = Math.floor(bins[row]);
        const last = Math.max(first + 1, Math.ceil(bins[row + 1]));
        let power = 0;
        for (let bin = first; bin < last; bin += 1) power = Math.max(power, real[bin] ** 2 + imaginary[bin] ** 2);
        cells[column * HEIGHT + row] = 10 * Math.log10(power + 1e-10);
      }
    }
    return cells;
  }

  function paint(canvas, cells) {
    const context = canvas.getContext("2d");
    const image = context.createImageData(WIDTH, HEIGHT);
    let loudest = -60;
    for (const cell of cells) loudest = Math.max(loudest, cell);
    for (let column = 0; column < WIDTH; column += 1) {
      for (let row = 0; row < HEIGHT; row += 1) {
        const at = ((HEIGHT - 1 - row) * WIDTH + column) * 4;
        image.data.set(heat(1 + (cells[column * HEIGHT + row] - loudest) / 70), at);
        image.data[at + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
  }

  /** A player with a spectrogram. `show` decodes the bytes of an audio file and paints the spectrogram, if `isCurrent`
   *  is still true then. */
  function player(caption) {
    const canvas = make("canvas", { class: "spectrogram", width: WIDTH, height: HEIGHT, role: "img", "aria-label": `Spectrogram${caption ? ` of ${caption}` : ""}` });
    const cursor = make("div", { class: "cursor", hidden: true });
    const audio = make("audio", { controls: true, preload: "metadata", "aria-label": caption || "Audio" });
    const element = make("div", { class: "player" }, make("div", { class: "seen" }, canvas, cursor), audio);
    const follow = () => {
      cursor.hidden = !audio.duration;
      if (audio.duration) cursor.style.left = `${(100 * audio.currentTime) / audio.duration}%`;
      if (!audio.paused) requestAnimationFrame(follow);
    };
    audio.addEventListener("play", () => {
      for (const other of document.querySelectorAll("audio, video")) if (other !== audio && !other.muted) other.pause();
      follow();
    });
    audio.addEventListener("seeked", follow);
    canvas.addEventListener("click", (event) => {
      if (!audio.duration) return;
      audio.currentTime = (event.offsetX / canvas.clientWidth) * audio.duration;
      audio.play();
    });
    return {
      element,
      async show(address, buffer, isCurrent) {
        const playing = !audio.paused;
        audio.src = address;
        if (playing) audio.play();
        const { wave, rate } = await decode(buffer);
        if (!isCurrent()) return;
        paint(canvas, spectrogram(wave, rate));
        canvas.dataset.painted = "yes";
      },
    };
  }

  quintet.audio = { player };
})();
