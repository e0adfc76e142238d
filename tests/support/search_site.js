// Asks the search of the site, which runs in a worker of the browser: WORKER INDEX WORDS…
// Prints the places that it finds, best first, by words.
const fs = require("fs");
const [worker, index, ...searches] = process.argv.slice(2);
const {items, config} = JSON.parse(fs.readFileSync(index, "utf8"));
let answered;

global.self = {postMessage: (message) => answered(message)};
(0, eval)(fs.readFileSync(worker, "utf8"));

function ask(type, data) {
  const answer = new Promise((resolve) => { answered = resolve; });
  self.onmessage({data: {type, data}});
  return answer;
}

(async () => {
  await ask(0, {items, config});
  const places = {};
  for (const input of searches) {
    const {data} = await ask(2, {input});
    places[input] = data.items.map(({id}) => items[id].location);
  }
  console.log(JSON.stringify(places));
})();
