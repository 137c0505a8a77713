// Mesh viewer: reads GLB and OBJ files and draws them. One WebGL context draws for all canvases of the page, because a
// browser allows only a few contexts; the result is copied to each canvas.
"use strict";

(function () {
  const { make } = quintet;

  // --- reading ------------------------------------------------------------------------------------------------

  /** Vertices of triangles, nine numbers per triangle. */
  function read(buffer) {
    const magic = buffer.byteLength > 20 ? new DataView(buffer).getUint32(0, true) : 0;
    return magic === 0x46546c67 ? readGlb(buffer) : readObj(new TextDecoder().decode(buffer));
  }

  function readGlb(buffer) {
    const view = new DataView(buffer);
    const length = view.getUint32(12, true);
    const tree = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 20, length)));
    const start = 20 + length + 8;
    const types = { 5121: [Uint8Array, 1], 5123: [Uint16Array, 2], 5125: [Uint32Array, 4], 5126: [Float32Array, 4] };
    const accessor = (number, width) => {
      const about = tree.accessors[number];
      const bufferView = tree.bufferViews[about.bufferView];
      const [Type, bytes] = types[about.componentType];
      const offset = start + (bufferView.byteOffset || 0) + (about.byteOffset || 0);
      const stride = bufferView.byteStride || bytes * width;
      const values = new Type(about.count * width);
      for (let item = 0; item < about.count; item += 1) {
        const from = offset + item * stride;
        values.set(new Type(buffer.slice(from, from + bytes * width)), item * width);
      }
      return values;
    };
    const corners = [];
    for (const mesh of tree.meshes || []) {
      for (const part of mesh.primitives) {
        const positions = accessor(part.attributes.POSITION, 3);
        const order = part.indices === undefined ? Array.from({ length: positions.length / 3 }, (_, index) => index) : accessor(part.indices, 1);
        for (const index of order) corners.push(positions[3 * index], positions[3 * index + 1], positions[3 * index + 2]);
      }
    }
    return new Float32Array(corners);
  }

  function readObj(text) {
    const vertices = [];
    const corners = [];
    for (const line of text.split("\n")) {
      const words = line.trim().split(/\s+/);
      if (words[0] === "v") vertices.push(words.slice(1, 4).map(Number));
      if (words[0] === "f") {
        const face = words.slice(1).map((word) => parseInt(word, 10)).map((index) => vertices[index < 0 ? vertices.length + index : index - 1]);
        for (let corner = 1; corner + 1 < face.length; corner += 1) corners.push(...face[0], ...face[corner], ...face[corner + 1]);
      }
    }
    return new Float32Array(corners);
  }

  // --- drawing ------------------------------------------------------------------------------------------------

  const VERTEX = `
    attribute vec3 position; attribute vec3 normal; attribute vec3 edge;
    uniform mat3 turn; uniform float scale; uniform vec3 centre; uniform float aspect;
    varying vec3 facing; varying vec3 along;
    void main() {
      vec3 seen = turn * ((position - centre) * scale);
      facing = turn * normal; along = edge;
      float depth = 3.2 - seen.z;
      gl_Position = vec4(seen.x * 2.2 / aspect, seen.y * 2.2, (depth - 3.2) / 4.0 * depth, depth);
    }`;
  const FRAGMENT = `
    #extension GL_OES_standard_derivatives : enable
    precision mediump float;
    varying vec3 facing; varying vec3 along; uniform vec3 paint; uniform vec3 line;
    void main() {
      vec3 towards = normalize(gl_FrontFacing ? facing : -facing);
      float light = 0.55 + 0.45 * max(dot(towards, normalize(vec3(-0.4, 0.7, 0.8))), 0.0) + 0.25 * max(dot(towards, normalize(vec3(0.8, 0.1, 0.4))), 0.0);
      vec3 width = fwidth(along);
      vec3 near = smoothstep(vec3(0.0), width * 1.1, along);
      float inner = min(min(near.x, near.y), near.z);
      gl_FragColor = vec4(mix(line, paint * light, 0.35 + 0.65 * inner), 1.0);
    }`;

  let painter = null;
  function shared() {
    if (painter) return painter;
    const canvas = document.createElement("canvas");
    const gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true, alpha: true });
    if (!gl) throw new Error("this browser cannot draw in 3D (no WebGL)");
    gl.getExtension("OES_standard_derivatives");
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error("this browser cannot draw the mesh");
    gl.useProgram(program);
    gl.enable(gl.DEPTH_TEST);
    const buffers = ["position", "normal", "edge"].map((name) => {
      const location = gl.getAttribLocation(program, name);
      gl.enableVertexAttribArray(location);
      return { location, buffer: gl.createBuffer() };
    });
    const uniforms = {};
    for (const name of ["turn", "scale", "centre", "aspect", "paint", "line"]) uniforms[name] = gl.getUniformLocation(program, name);
    painter = { canvas, gl, buffers, uniforms, held: null };
    canvas.addEventListener("webglcontextlost", () => { painter = null; });
    return painter;
  }

  function prepare(corners) {
    const normals = new Float32Array(corners.length);
    const edges = new Float32Array(corners.length);
    const low = [Infinity, Infinity, Infinity];
    const high = [-Infinity, -Infinity, -Infinity];
    for (let at = 0; at < corners.length; at += 9) {
      const [a, b] = [3, 6].map((next) => [0, 1, 2].map((axis) => corners[at + next + axis] - corners[at + axis]));
      const normal = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
      const length = Math.hypot(...normal) || 1;
      for (let corner = 0; corner < 3; corner += 1) {
        edges[at + corner * 3 + corner] = 1;
        for (let axis = 0; axis < 3; axis += 1) {
          const value = corners[at + corner * 3 + axis];
          normals[at + corner * 3 + axis] = normal[axis] / length;
          low[axis] = Math.min(low[axis], value);
          high[axis] = Math.max(high[axis], value);
        }
      }
    }
    const centre = low.map((value, axis) => (value + high[axis]) / 2);
    const extent = Math.hypot(...low.map((value, axis) => high[axis] - value)) || 1;
    return { arrays: [corners, normals, edges], centre, scale: 2.6 / extent, count: corners.length / 3 };
  }

  function draw(target, mesh, pose) {
    const { canvas, gl, buffers, uniforms } = shared();
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const [width, height] = [target.clientWidth || 280, target.clientHeight || 220].map((side) => Math.round(side * ratio));
    for (const each of [canvas, target]) {
      if (each.width !== width || each.height !== height) { each.width = width; each.height = height; }
    }
    if (painter.held !== mesh) {
      buffers.forEach(({ location, buffer }, number) => {
        gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
        gl.bufferData(gl.ARRAY_BUFFER, mesh.arrays[number], gl.STATIC_DRAW);
        gl.vertexAttribPointer(location, 3, gl.FLOAT, false, 0, 0);
      });
      painter.held = mesh;
    }
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const [around, up] = [pose.around, pose.up];
    const [c, s, d, t] = [Math.cos(around), Math.sin(around), Math.cos(up), Math.sin(up)];
    gl.uniformMatrix3fv(uniforms.turn, false, [c, s * t, -s * d, 0, d, t, s, -c * t, c * d]);
    gl.uniform1f(uniforms.scale, mesh.scale * pose.zoom);
    gl.uniform3fv(uniforms.centre, mesh.centre);
    gl.uniform1f(uniforms.aspect, width / height);
    gl.uniform3fv(uniforms.paint, [0.62, 0.74, 0.92]);
    gl.uniform3fv(uniforms.line, [0.13, 0.2, 0.33]);
    gl.drawArrays(gl.TRIANGLES, 0, mesh.count);
    const context = target.getContext("2d");
    context.clearRect(0, 0, width, height);
    context.drawImage(canvas, 0, 0);
  }

  /** A canvas that shows a mesh, rotated by dragging or the arrow keys. `show` sets another mesh in the same pose. */
  function viewer(caption) {
    const pose = { around: 0.7, up: 0.45, zoom: 1 };
    let mesh = null;
    let scheduled = false;
    const canvas = make("canvas", {
      class: "mesh", tabindex: "0", role: "img",
      "aria-label": `Mesh${caption ? `: ${caption}` : ""}. Arrow keys rotate, plus and minus zoom, 0 resets the view.`,
    });
    const redraw = () => {
      if (scheduled || !mesh) return;
      scheduled = true;
      requestAnimationFrame(() => { scheduled = false; if (mesh && canvas.isConnected) draw(canvas, mesh, pose); });
    };
    const turn = (around, up) => {
      pose.around += around;
      pose.up = Math.max(-1.5, Math.min(1.5, pose.up + up));
      redraw();
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); canvas.focus({ preventScroll: true }); });
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) turn(event.movementX * 0.012, event.movementY * 0.012);
    });
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas) return; // scrolling past must not zoom
      event.preventDefault();
      pose.zoom = Math.max(0.3, Math.min(5, pose.zoom * Math.exp(-event.deltaY * 0.001)));
      redraw();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const keys = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
      if (keys[event.key]) turn(...keys[event.key]);
      else if (event.key === "+" || event.key === "-") { pose.zoom *= event.key === "+" ? 1.15 : 1 / 1.15; redraw(); }
      else if (event.key === "0") { Object.assign(pose, { around: 0.7, up: 0.45, zoom: 1 }); redraw(); }
      else return;
      event.preventDefault();
    });
    new ResizeObserver(redraw).observe(canvas);
    return {
      canvas,
      show(buffer) {
        shared(); // throws here, where the error is shown, if the browser cannot draw
        mesh = prepare(read(buffer));
        canvas.dataset.triangles = String(mesh.count / 3);
        redraw();
      },
    };
  }

  quintet.mesh = { read, viewer };
})();
