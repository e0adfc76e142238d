// Live updates and forms without reloading; every page also works without this script.
const main = document.querySelector("main");
const note = document.querySelector("#live");
let latest = 0;

const reachable = (part) => [...part.querySelectorAll("a, button, [tabindex]")];

// Fetch a page and put its live parts in the place of ours, except where someone is typing.
async function refresh(address) {
  const mine = ++latest;
  const answer = await fetch(address, { headers: { Accept: "text/html", "Joulery-Live": "1" } });
  if (answer.redirected) return location.assign(answer.url); // logged out meanwhile
  if (!answer.ok || mine !== latest) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next || old.innerHTML === next.innerHTML) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    if (focused?.matches("input, select, textarea") || old.querySelector("td input:checked")) continue;
    const place = reachable(old).indexOf(focused);
    const across = [...old.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    old.innerHTML = next.innerHTML;
    document.dispatchEvent(new Event("refreshed"));
    old.querySelectorAll(".wide").forEach((one, at) => { one.scrollLeft = across[at] ?? 0; });
    const again = focused?.id ? document.getElementById(focused.id) : reachable(old)[place];
    again?.focus({ preventScroll: true });
  }
}

// Dates are shown in the browser's time zone, which the server learns from a cookie.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && zone !== document.body.dataset.zone) {
  document.cookie = `joulery_zone=${zone}; path=/; max-age=31536000; samesite=strict`;
  if (document.querySelector("[data-live]")) refresh(location.href);
}

// The server says when something has changed; one stream serves all tabs where browsers can share.
if (main?.dataset.events) {
  const topic = main.dataset.events;
  let mark = main.dataset.mark, lost;
  const hear = (data) => {
    clearTimeout(lost);
    if (data === null) {
      lost = setTimeout(() => { note.textContent = "connection lost, trying again"; }, 3000);
      return;
    }
    note.textContent = "· live";
    if (data !== mark) refresh(location.href);
    mark = data;
  };
  if (window.SharedWorker) {
    const version = new URL(import.meta.url).search;
    const { port } = new SharedWorker(`/assets/stream.js${version}`, { name: "joulery" });
    port.onmessage = ({ data }) => hear(data);
    port.postMessage(topic);
    addEventListener("pagehide", () => port.postMessage(null));
    addEventListener("pageshow", (event) => event.persisted && port.postMessage(topic));
  } else {
    const source = new EventSource(`/changes?${new URLSearchParams({ topic })}`);
    source.addEventListener(topic, (event) => hear(event.data));
    source.onerror = () => hear(null);
    addEventListener("pagehide", () => source.close());
  }
}

// A form whose answer is shown at once, as its sliders move.
for (const form of document.querySelectorAll("form[data-instant]")) {
  let timer;
  form.addEventListener("input", (event) => {
    const shown = form.querySelector(`output[for="${event.target.id}"]`);
    if (shown) shown.textContent = event.target.value;
    const cleared = { range: "input[type=number]", "select-one": event.target.name === "range" && "input[type=date]" };
    const others = cleared[event.target.type];
    if (others) form.querySelectorAll(others).forEach((field) => { field.value = ""; });
    clearTimeout(timer);
    timer = setTimeout(() => {
      const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
      history.replaceState(null, "", `?${query}`);
      refresh(location.href);
    }, 150);
  });
}
