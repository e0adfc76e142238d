// One stream of changes for all tabs of a browser: tabs name topics, and get their marks.
const ports = new Map(); // port → topic
let source, wanted = "", closing;

function connect() {
  const topics = [...new Set(ports.values())].sort();
  const address = `/changes?${new URLSearchParams(topics.map((topic) => ["topic", topic]))}`;
  if (address === wanted && source?.readyState !== EventSource.CLOSED) return;
  source?.close();
  wanted = address;
  if (!topics.length) return;
  source = new EventSource(address);
  for (const topic of topics) {
    source.addEventListener(topic, (event) => send(topic, event.data));
  }
  source.onerror = () => topics.forEach((topic) => send(topic, null));
}

function send(topic, mark) {
  for (const [port, own] of ports) if (own === topic) port.postMessage(mark);
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data === null) ports.delete(port);
    else ports.set(port, data);
    clearTimeout(closing);
    closing = setTimeout(connect, 50); // tabs that open together connect once
  };
};
