// Charts drawn by the server: values under the pointer, zoom, and files to save.
const SVG = "http://www.w3.org/2000/svg";
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");
document.body.append(tip);

const views = new Map(); // what was zoomed to, by title, for charts that are drawn anew

const number = (value) => value.toLocaleString(undefined, { maximumSignificantDigits: 4 });
const pairs = (text) => text.trim().split(/\s+/).map((pair) => pair.split(",").map(Number));
const joined = (points) => points.map(([x, y]) => `${x},${y}`).join(" ");

function element(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function show(lines, x, y) {
  tip.textContent = lines.filter(Boolean).join("\n");
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(x + 14, room)) + scrollX}px`;
  tip.style.top = `${Math.max(8, y - tip.offsetHeight - 12) + scrollY}px`;
}

// One drawing of a chart: that for wide screens, or that for narrow ones.
class Plot {
  constructor(svg, chart, reset) {
    [this.left, this.right, this.top, this.bottom, ...this.values] = svg.dataset.frame.split(" ").map(Number);
    Object.assign(this, { svg, chart, reset, plot: svg.querySelector(".plot"), ticks: svg.querySelector(".ticks") });
    this.whole = this.ticks.innerHTML;
    this.view = [this.values[0], this.values[1]];
    this.shapes = [...this.plot.querySelectorAll("polyline, polygon, text")].map((shape) => ({
      shape,
      scales: shape.parentNode === this.plot || chart.series.some((series) => series.bars),
      points: shape.hasAttribute("points") ? pairs(shape.getAttribute("points")) : [[Number(shape.getAttribute("x")), 0]],
    }));
    this.clip();
    this.listen();
  }

  clip() {
    const id = `clip-${this.svg.getAttribute("aria-labelledby").split(" ")[0]}`;
    const path = element("clipPath", { id });
    path.append(element("rect", { x: this.left - 8, y: 0, width: this.right - this.left + 16, height: this.bottom + 8 }));
    this.svg.prepend(path);
    this.plot.setAttribute("clip-path", `url(#${id})`);
    this.line = element("line", { y1: this.top, y2: this.bottom, stroke: "var(--soft)", visibility: "hidden" });
    this.area = element("rect", { y: this.top, height: this.bottom - this.top, fill: "var(--s0)", "fill-opacity": 0.15, visibility: "hidden" });
    this.svg.append(this.area, this.line);
  }

  // Titles of shapes become tips of ours, which the keyboard reaches as well.
  listen() {
    for (const group of this.plot.querySelectorAll("g[tabindex]")) {
      const title = group.querySelector("title");
      group.setAttribute("role", "img");
      group.setAttribute("aria-label", title.textContent);
      title.remove();
      group.addEventListener("focus", () => {
        const box = group.getBoundingClientRect();
        show([group.getAttribute("aria-label")], box.right, box.top);
      });
      group.addEventListener("blur", () => this.leave());
    }
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("pointerdown", (event) => { this.from = this.at(event); });
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("dblclick", () => this.zoom(this.values[0], this.values[1]));
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
  }

  across(value) { return this.left + ((value - this.view[0]) / (this.view[1] - this.view[0])) * (this.right - this.left); }
  value(pixel) { return this.view[0] + ((pixel - this.left) / (this.right - this.left)) * (this.view[1] - this.view[0]); }

  move(event) {
    const at = this.at(event);
    if (this.from !== undefined && event.buttons) {
      const ends = [this.from, at].sort((a, b) => a - b);
      this.area.setAttribute("x", ends[0]);
      this.area.setAttribute("width", ends[1] - ends[0]);
      this.area.setAttribute("visibility", "visible");
    }
    const group = event.target.closest("g[aria-label]");
    if (group) return show([group.getAttribute("aria-label")], event.clientX, event.clientY);
    if (at < this.left || at > this.right) return this.leave();
    const near = this.nearest(at);
    if (!near) return this.leave();
    this.line.setAttribute("x1", this.across(near.x));
    this.line.setAttribute("x2", this.across(near.x));
    this.line.setAttribute("visibility", "visible");
    show(near.lines, event.clientX, event.clientY);
  }

  // Values of all lines at the point nearest to the pointer.
  nearest(at) {
    const { x, y, series } = this.chart;
    const distance = ([a]) => Math.abs(this.across(a) - at);
    const close = series.map((line) => ({ line, point: line.points.reduce((best, point) => (distance(point) < distance(best) ? point : best), line.points[0]) }));
    const best = close.reduce((a, b) => (distance(b.point) < distance(a.point) ? b : a), close[0]);
    if (!best || distance(best.point) > 40) return null;
    const at_x = best.point[0];
    const lines = close
      .filter(({ point }) => Math.abs(this.across(point[0]) - this.across(at_x)) < 3)
      .map(({ line, point }) => `${line.name ? `${line.name}: ` : ""}${label(y, point[1])}`);
    return { x: at_x, lines: [`${x.labels.length || x.unit ? "" : `${x.name} `}${label(x, at_x)}`, ...lines] };
  }

  leave() {
    tip.hidden = true;
    this.line.setAttribute("visibility", "hidden");
  }

  release(event) {
    const ends = [this.from, this.at(event)].sort((a, b) => a - b);
    this.from = undefined;
    this.area.setAttribute("visibility", "hidden");
    if (ends[1] - ends[0] > 8) this.zoom(this.value(Math.max(this.left, ends[0])), this.value(Math.min(this.right, ends[1])));
  }

  zoom(low, high) {
    if (!(high > low)) return;
    const old = [...this.values.slice(0, 2)];
    this.view = [low, high];
    const is_whole = low === old[0] && high === old[1];
    this.reset.hidden = is_whole;
    if (is_whole) views.delete(this.chart.title);
    else views.set(this.chart.title, this.view);
    const original = (pixel) => old[0] + ((pixel - this.left) / (this.right - this.left)) * (old[1] - old[0]);
    for (const { shape, points, scales } of this.shapes) {
      const middle = points.reduce((sum, [x]) => sum + x, 0) / points.length;
      const shift = this.across(original(middle)) - middle;
      const moved = points.map(([x, y]) => [scales ? this.across(original(x)) : x + shift, y]);
      if (shape.hasAttribute("points")) shape.setAttribute("points", joined(moved));
      else shape.setAttribute("x", moved[0][0]);
    }
    if (is_whole) this.ticks.innerHTML = this.whole;
    else this.ticks.replaceChildren(...this.marks(low, high));
  }

  marks(low, high) {
    const { ticks, labels } = this.chart.x;
    const inside = ticks.map((tick, at) => [tick, labels[at] ?? number(tick)]).filter(([tick]) => tick >= low && tick <= high);
    const marks = inside.length > 1 ? inside : labels.length ? inside : round(low, high).map((tick) => [tick, number(tick)]);
    const step = Math.ceil(marks.length / 6);
    return marks.filter((_, at) => at % step === 0).flatMap(([tick, text]) => {
      const x = this.across(tick);
      return [
        element("line", { x1: x, x2: x, y1: this.top, y2: this.bottom, stroke: "var(--rule)" }),
        element("text", { x, y: this.bottom + 18, "text-anchor": "middle", fill: "var(--soft)" }, text),
      ];
    });
  }
}

function label(axis, value) {
  const at = axis.ticks.findIndex((tick) => Math.abs(tick - value) < 1e-6 * Math.max(1, Math.abs(tick)));
  return axis.labels[at] ?? `${number(value)} ${axis.unit}`.trim();
}

function round(low, high) {
  const rough = (high - low) / 6;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step <= high; at++) ticks.push(Number((at * step).toPrecision(10)));
  return ticks;
}

function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv({ x, y, series }) {
  const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
  const plain = (value) => { const at = x.ticks.indexOf(value); return x.labels[at] ? quoted(x.labels[at]) : value; };
  const rows = series.flatMap((line) => line.points.map(([a, b], at) => [quoted(line.name), plain(a), b, line.errors[at] ?? ""].join(",")));
  return [["series", x.name, y.name, "one standard error"].map(quoted).join(","), ...rows].join("\r\n");
}

function picture(svg) {
  const copy = svg.cloneNode(true);
  const style = getComputedStyle(document.documentElement);
  const { width, height } = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", SVG);
  copy.prepend(element("rect", { width, height, fill: "var(--paper)" }));
  copy.setAttribute("font-family", "system-ui, sans-serif");
  copy.setAttribute("font-size", "13");
  return copy.outerHTML.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}

function button(text, title, act) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", textContent: text, title, onclick: act });
  made.setAttribute("aria-label", title);
  return made;
}

function enliven(figure) {
  if (figure.querySelector(".tools")) return;
  const chart = JSON.parse(figure.dataset.chart);
  const visible = () => plots.find((plot) => plot.svg.getBoundingClientRect().width > 0) ?? plots[0];
  const name = chart.title.toLowerCase().replace(/\W+/g, "-");
  const reset = button("whole", `Show all of: ${chart.title}`, () => plots.forEach((plot) => plot.zoom(plot.values[0], plot.values[1])));
  reset.hidden = true;
  const plots = [...figure.querySelectorAll("svg[data-frame]")].map((svg) => new Plot(svg, chart, reset));
  const view = views.get(chart.title);
  if (view) plots.forEach((plot) => plot.zoom(...view));
  const tools = document.createElement("div");
  tools.className = "tools";
  tools.append(
    reset,
    button("zoom", `Zoom into the middle of: ${chart.title}`, () => {
      const plot = visible();
      const [low, high] = plot.view;
      plot.zoom(low + (high - low) / 4, high - (high - low) / 4);
    }),
    button("CSV", `Save figures of: ${chart.title}`, () => save(csv(chart), "text/csv", `${name}.csv`)),
    button("SVG", `Save picture of: ${chart.title}`, () => save(picture(visible().svg), "image/svg+xml", `${name}.svg`)),
  );
  figure.prepend(tools);
}

const enliven_all = () => {
  tip.hidden = true;
  document.querySelectorAll("figure[data-chart]").forEach(enliven);
};
document.addEventListener("refreshed", enliven_all);
enliven_all();
