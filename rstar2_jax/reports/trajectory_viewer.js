"use strict";
// Text from a trajectory enters the page only through textContent.

const ROW_HEIGHT = 40;
const MODES = ["plain", "mask", "gap", "entropy", "advantage", "version"];
const TITLES = {
  plain: "plain", mask: "mask", gap: "logprob gap", entropy: "entropy",
  advantage: "advantage", version: "policy version"};

const byId = (id) => document.getElementById(id);
const {rows, fates, errors} = JSON.parse(byId("index").textContent);
const packed = byId("details").textContent.split("\n");
rows.forEach((row, i) => { row.index = i; });

let shown = rows;  // what the filters leave
let selected = -1;  // index into rows
let mode = "mask";

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const number = (x, digits = 3) =>
    x === null || x === undefined ? "–" : String(+x.toFixed(digits));
const isError = (status) => errors.includes(status);
const groupOf = (row) => rows.filter(
    (r) => r.step === row.step && r.prompt === row.prompt);

// --- filters -----------------------------------------------------------------

function fill(id, values) {
  const select = byId(id);
  select.append(new Option("all", ""));
  for (const value of values) select.append(new Option(value, value));
}

const distinct = (values) => [...new Set(values)].sort(
    (a, b) => typeof a === "number" && typeof b === "number" ? a - b
        : String(a).localeCompare(String(b)));

function fillFilters() {
  fill("reward", distinct(rows.map((r) => number(r.reward))));
  fill("stop", distinct(rows.map((r) => r.stop)));
  fill("tool", ["no call", "no error", "any error",
                ...distinct(rows.flatMap((r) => r.statuses))]);
  fill("turns", distinct(rows.map((r) => r.turns)));
  fill("fate", distinct(rows.map((r) => r.fate)));
  fill("source", distinct(rows.map((r) => r.source)));
}

function matchesTool(row, wanted) {
  if (wanted === "no call") return row.statuses.length === 0;
  if (wanted === "no error") return !row.statuses.some(isError);
  if (wanted === "any error") return row.statuses.some(isError);
  return row.statuses.includes(wanted);
}

function filter() {
  const want = (id) => byId(id).value;
  const first = want("first") === "" ? -Infinity : +want("first");
  const last = want("last") === "" ? Infinity : +want("last");
  const text = want("search").toLowerCase();
  const is = (id, value) => want(id) === "" || want(id) === String(value);
  shown = rows.filter((r) =>
    r.step >= first && r.step <= last && is("reward", number(r.reward)) &&
    is("stop", r.stop) && is("turns", r.turns) && is("fate", r.fate) &&
    is("source", r.source) &&
    (want("tool") === "" || matchesTool(r, want("tool"))) &&
    (text === "" || `${r.problem} ${r.prompt}`.toLowerCase().includes(text)));
  byId("count").textContent = `${shown.length} of ${rows.length}`;
  byId("rows").style.height = `${shown.length * ROW_HEIGHT}px`;
  drawList();
  if (!shown.includes(rows[selected])) select(shown.length ? shown[0] : null);
}

// --- list: only the rows in view are in the document -------------------------

function drawList() {
  const list = byId("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 5);
  const end = Math.min(shown.length, first + 10 + Math.ceil(
      list.clientHeight / ROW_HEIGHT));
  byId("rows").replaceChildren(...Array.from(
      {length: end - first}, (_, i) => listRow(shown[first + i], first + i)));
}

function listRow(row, position) {
  const node = element("div", "row");
  node.style.top = `${position * ROW_HEIGHT}px`;
  node.setAttribute("role", "option");
  node.setAttribute("aria-selected", row.index === selected);
  node.classList.toggle("is-selected", row.index === selected);
  node.onclick = () => select(row);
  node.append(
      element("span", row.reward > 0 ? "good" : "bad", number(row.reward)),
      element("span", "", ` · step ${row.step} · ${row.source || row.prompt}`),
      element("span", "muted",
          ` #${row.sample} · ${row.stop} · ${row.turns} turns · `));
  for (const status of row.statuses.slice(0, 12)) {
    const dot = element("span", `dot ${isError(status) ? "bad" : "good"}`);
    dot.title = status;
    node.append(dot);
  }
  node.append(element("span", "muted", ` ${row.fate}`),
              element("div", "problem", row.problem));
  return node;
}

function scrollTo(row) {
  const list = byId("list");
  const top = shown.indexOf(row) * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  const low = top + ROW_HEIGHT - list.clientHeight;
  if (low > list.scrollTop) list.scrollTop = low;
}

// --- one trajectory ----------------------------------------------------------

async function unpack(index) {
  const bytes = Uint8Array.from(atob(packed[index]), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(
      new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

async function select(row) {
  selected = row ? row.index : -1;
  const detail = byId("detail");
  if (!row) {
    detail.replaceChildren(element("p", "muted", "No trajectory matches."));
    drawList();
    return;
  }
  history.replaceState(null, "", `#${selected}`);
  scrollTo(row);
  drawList();
  const data = await unpack(row.index);
  if (selected !== row.index) return;  // another was chosen meanwhile
  detail.replaceChildren(
      ...facts(row, data), element("h2", "", "Group"), groupBox(row),
      element("h2", "", "Conversation"), legend(), ...conversation(row, data));
  detail.scrollTop = 0;
  byId("group").querySelector(".is-selected").scrollIntoView(
      {block: "nearest"});
  detail.dataset.index = row.index;
  paint(row, data);
  current = {row, data};
}

let current = null;

function facts(row, data) {
  const line = element("div", "facts");
  const add = (name, value) => {
    const fact = element("span");
    fact.append(element("span", "muted", `${name} `), String(value));
    line.append(fact);
  };
  add("step", row.step);
  add("prompt", `${row.prompt} #${row.sample}`);
  add("level", row.level);
  add("reward", number(row.reward));
  add("gold answer", data.answer);
  add("stop", row.stop);
  add("sampled tokens", row.tokens);
  add("policy version", row.versions.join(", ") || "–");
  add("advantage", number(row.advantage));
  add("fate", `${row.fate}: ${fates[row.fate]}`);
  for (const [name, seconds] of Object.entries(data.timings)) {
    add(name.replace(/_s$/, ""), `${number(seconds)} s`);
  }
  return [element("div", "problem-text", data.problem), line];
}

function groupBox(row) {
  const box = element("div", "group-box");
  box.append(groupTable(row));
  return box;
}

function groupTable(row) {
  const table = element("table");
  table.id = "group";
  const head = element("tr");
  for (const name of ["#", "reward", "tool results", "error ratio",
                      "answer format", "RoC", "advantage", "tokens", "stop"]) {
    head.append(element("th", "", name));
  }
  table.append(head);
  for (const other of groupOf(row)) {
    const line = element("tr", other.index === row.index ? "is-selected" : "");
    line.append(
        element("td", "", other.sample),
        element("td", other.reward > 0 ? "good" : "bad", number(other.reward)));
    const dots = element("td");
    for (const status of other.statuses.slice(0, 20)) {
      const dot = element("span", `dot ${isError(status) ? "bad" : "good"}`);
      dot.title = status;
      dots.append(dot);
    }
    const fate = element(
        "td", other.fate === "trained" ? "" : "muted", other.fate);
    fate.title = fates[other.fate];
    line.append(
        dots, element("td", "", number(other.errorRatio)),
        element("td", "", number(other.answerFormat)), fate,
        element("td", "", number(other.advantage)),
        element("td", "", other.tokens), element("td", "", other.stop));
    line.onclick = () => select(other);
    table.append(line);
  }
  return table;
}

function conversation(row, data) {
  const nodes = [];
  let turn = 0;
  let sampled = 0;
  data.spans.forEach((span, i) => {
    // The prompt is long and the same everywhere: folded until asked for.
    const isPrompt = span.source === "prompt";
    const node = element(isPrompt ? "details" : "div", `span ${span.source}`);
    const who = span.source === "policy" ? `policy, turn ${turn + 1}`
        : span.source === "tool" ? "tool response, as the policy read it"
        : `${span.source}, ${span.pieces.length} tokens`;
    if (span.source !== "template") {
      node.append(element(isPrompt ? "summary" : "div", "who", who));
    }
    const tokens = element("div", "tokens");
    tokens.dataset.span = i;
    span.pieces.forEach((piece, k) => {
      const token = element("span", "", piece);
      token.dataset.token = k;
      tokens.append(token);
    });
    node.append(tokens);
    nodes.push(node);
    if (span.source === "policy") {
      data.calls.forEach((call, k) => {
        if (call.turn === turn) nodes.push(callCard(call, data.results[k]));
      });
      turn += 1;
      sampled += span.pieces.length;
    }
  });
  return nodes;
}

function callCard(call, result) {
  const failed = result && isError(result.status);
  const card = element("div", `call ${failed ? "is-error" : ""}`);
  const head = element("div", "facts");
  head.append(element("span", "muted", call.name || "no name"));
  if (result) {
    head.append(
        element("span", `badge ${failed ? "bad" : "good"}`, result.status),
        element("span", "muted", `${number(result.wallMs, 1)} ms` +
            (result.queueMs ? `, queued ${number(result.queueMs, 1)} ms` : "") +
            (result.truncated ? ", output cut" : "")));
  }
  card.append(head, element("pre", "", call.code));
  for (const [name, text] of result ? result.parts : []) {
    const part = element("div", "part");
    part.append(element("div", "who", name), element("pre", "", text));
    card.append(part);
  }
  return card;
}

// --- colors ------------------------------------------------------------------

const BLUE = "37 99 235", RED = "220 38 38", GREEN = "22 163 74",
  AMBER = "217 119 6";
const VERSIONS = [BLUE, AMBER, GREEN, "124 58 237", "219 39 119",
                  "8 145 178", RED, "101 163 13"];
const tint = (rgb, strength) =>
    `rgb(${rgb} / ${(0.6 * Math.min(1, strength)).toFixed(3)})`;

const gapOf = (span, k) =>
    span.learner.length ? span.learner[k] - span.logprobs[k] : null;

function scaleOf(data) {
  const policy = data.spans.filter((s) => s.source === "policy");
  const most = (values) => values.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  return {
    gap: most(policy.flatMap((s) => s.pieces.map((_, k) => gapOf(s, k) || 0))),
    entropy: most(policy.flatMap((s) => s.entropy))};
}

function colorOf(span, k, row, scale) {
  if (span.source !== "policy") return "";
  if (mode === "mask") {
    return row.fate === "trained" ? tint(GREEN, 0.45) : tint(AMBER, 0.45);
  }
  if (mode === "gap" && scale.gap > 0) {
    const gap = gapOf(span, k);
    return gap === null ? "" : tint(gap > 0 ? BLUE : RED,
                                    Math.abs(gap) / scale.gap);
  }
  if (mode === "entropy" && scale.entropy > 0 && span.entropy.length) {
    return tint(AMBER, span.entropy[k] / scale.entropy);
  }
  if (mode === "advantage" && row.advantage !== null) {
    return tint(row.advantage > 0 ? GREEN : RED, Math.abs(row.advantage) / 2);
  }
  if (mode === "version" && span.version !== null) {
    return tint(VERSIONS[span.version % VERSIONS.length], 0.5);
  }
  return "";
}

function paint(row, data) {
  const scale = scaleOf(data);
  for (const tokens of document.querySelectorAll(".tokens")) {
    const span = data.spans[tokens.dataset.span];
    [...tokens.children].forEach((token, k) => {
      token.style.background = colorOf(span, k, row, scale);
    });
  }
  for (const button of document.querySelectorAll("#legend button")) {
    button.classList.toggle("is-on", button.dataset.mode === mode);
  }
  byId("scale").replaceChildren(...scaleText(row, data, scale));
}

function scaleText(row, data, scale) {
  const sample = (rgb, strength, text) => {
    const node = element("span", "", ` ${text} `);
    node.style.background = tint(rgb, strength);
    return node;
  };
  const missing = (s) => s.source === "policy" && !s.entropy.length;
  if (mode === "mask") {
    return [sample(GREEN, 0.45, "in the loss"),
            sample(AMBER, 0.45, "sampled, not in the loss"), " neither"];
  }
  if (["gap", "entropy"].includes(mode) && data.spans.some(missing)) {
    return ["not recorded"];
  }
  if (mode === "gap") {
    const most = scale.gap.toPrecision(2);
    return [sample(RED, 1, `−${most}`), sample(BLUE, 1, `+${most}`),
            " nats, learner − sampler"];
  }
  if (mode === "entropy") {
    return [sample(AMBER, 0, "0"), sample(AMBER, 1, number(scale.entropy)),
            " nats"];
  }
  if (mode === "advantage") {
    return row.advantage === null ? ["none: not in the loss"]
        : [sample(RED, 1, "−2"), sample(GREEN, 1, "+2"),
           ` here ${number(row.advantage)}`];
  }
  if (mode === "version") {
    return row.versions.map((v) =>
        sample(VERSIONS[v % VERSIONS.length], 0.5, `version ${v}`));
  }
  return [];
}

function legend() {
  const node = element("div");
  node.id = "legend";
  MODES.forEach((name, i) => {
    const button = element("button", "", TITLES[name]);
    button.dataset.mode = name;
    button.title = `key ${i}`;
    button.onclick = () => setMode(name);
    node.append(button);
  });
  const scale = element("span");
  scale.id = "scale";
  node.append(scale);
  return node;
}

function setMode(name) {
  mode = name;
  if (current) paint(current.row, current.data);
}

function describe(event) {
  const token = event.target.closest(".tokens > span");
  if (!token || token.title || !current) return;
  const k = +token.dataset.token;
  const span = current.data.spans[token.parentNode.dataset.span];
  const lines = [`id ${span.ids[k]}`];
  if (span.source === "policy") {
    lines.push(`logprob ${number(span.logprobs[k], 4)} (sampler)`);
    if (span.learner.length) {
      lines.push(`logprob ${number(span.learner[k], 4)} (learner)`,
                 `gap ${gapOf(span, k).toPrecision(2)}`,
                 `entropy ${number(span.entropy[k], 4)} nats`);
    }
    lines.push(`policy version ${span.version}`);
  }
  token.title = lines.join("\n");
}

// --- keys --------------------------------------------------------------------

function move(by) {
  const at = shown.indexOf(rows[selected]);
  const next = shown[Math.max(0, Math.min(shown.length - 1, at + by))];
  if (next) select(next);
}

function moveGroup(by) {
  const same = (a, b) => a.step === b.step && a.prompt === b.prompt;
  let at = shown.indexOf(rows[selected]);
  const from = shown[at];
  while (shown[at] && same(shown[at], from)) at += by;
  if (shown[at]) select(shown[at]);
}

function clearFilters() {
  for (const node of byId("filters").querySelectorAll("input, select")) {
    node.value = "";
  }
  filter();
}

const KEYS = {
  j: () => move(1), k: () => move(-1), ArrowDown: () => move(1),
  ArrowUp: () => move(-1), n: () => moveGroup(1), p: () => moveGroup(-1),
  c: clearFilters, "/": () => byId("search").focus(),
  "?": () => byId("help").showModal()};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = KEYS[event.key] ||
      (MODES[event.key] && (() => setMode(MODES[event.key])));
  if (!action) return;
  event.preventDefault();
  action();
});

fillFilters();
byId("filters").addEventListener("input", filter);
byId("clear").onclick = clearFilters;
byId("keys").onclick = () => byId("help").showModal();
byId("list").addEventListener("scroll", drawList);
byId("detail").addEventListener("mouseover", describe);
window.addEventListener("resize", drawList);
const wanted = rows[Number(location.hash.slice(1) || 0)];
filter();
if (wanted) select(wanted);
requestAnimationFrame(() => requestAnimationFrame(() => {
  document.body.dataset.readyMs = Math.round(performance.now());
}));
