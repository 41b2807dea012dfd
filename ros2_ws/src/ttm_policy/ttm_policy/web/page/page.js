"use strict";
// The page talks to its server through one web socket. While it drives, it sends the positions of all
// controls at each change and KEEP_MS after the last time; a page that falls silent stops the robot.

const KEEP_MS = 60, RETRY_MS = 1000, ANSWER_MS = 1000, TOAST_MS = 6000, DEAD_ZONE = 0.12;
const $ = id => document.getElementById(id);
const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

let socket, facts = {cameras: [], widgets: [], keys: {}, instructions: []}, state = {}, requests = 0;
const waiting = new Map();
let stopping;      // a timer while the server has not confirmed a stop
let letGo = false;  // whether this page has let go of the controls itself

// ---- the connection

function connect() {
  const base = location.href.replace(/^http/, "ws").replace(/[^/]*$/, "");
  socket = new WebSocket(base + "socket");
  socket.binaryType = "blob";
  socket.onopen = () => {
    pill("link", "connected", "good");
    if (stopping) stop();
  };
  socket.onmessage = ({data}) => typeof data === "string" ? take(JSON.parse(data)) : showFrame(data);
  socket.onclose = () => {
    pill("link", "no connection", "bad");
    state = {};
    showState();
    setTimeout(connect, RETRY_MS);
  };
}

function take({kind, ...data}) {
  if (kind === "facts") showFacts(data);
  if (kind === "state") {
    if (state.driver === "me" && data.driver !== "me" && !letGo && !data.stopped) toast("This page was silent for too long. Press Drive again.");
    letGo &&= data.driver === "me";  // a state that was on its way says so still
    state = data;
    showState();
  }
  if (kind === "episodes") showEpisodes(data.list);
  if (kind === "answer") {
    if (!data.ok && data.id) toast(data.text);
    waiting.get(data.id)?.(data);
    waiting.delete(data.id);
  }
}

function ask(action, values = {}) {
  if (socket.readyState !== WebSocket.OPEN) return Promise.resolve({ok: false});
  const id = ++requests;
  socket.send(JSON.stringify({do: action, id, ...values}));
  return new Promise(done => waiting.set(id, done));
}

function release(back = false) {  // back: a policy drives again; otherwise the robot stands still
  letGo = state.driver === "me";
  tell("release", {back});
}

function tell(action, values = {}) {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({do: action, ...values}));
}

function stop() {  // everything, whoever drives; sent again when the connection is back
  clearTimeout(stopping);
  stopping = setTimeout(
    () => toast("No answer: the robot may not have heard Stop. Use the robot's own emergency stop."), ANSWER_MS);
  ask("e_stop").then(({ok}) => {
    if (!ok) return;
    clearTimeout(stopping);
    stopping = undefined;
  });
}

let toastTimer;
function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { $("toast").hidden = true; }, TOAST_MS);
}

function pill(id, text, look = "") {
  $(id).textContent = text;
  $(id).className = `pill ${look}`;
  $(id).hidden = !text;
}

// ---- cameras: the chosen one large, the others below

const urls = [];
let chosen = 0;

function showFrame(blob) {
  blob.slice(0, 1).arrayBuffer().then(bytes => {
    const place = new Uint8Array(bytes)[0], old = urls[place];
    urls[place] = URL.createObjectURL(blob.slice(1, blob.size, "image/jpeg"));
    placeFrames();
    if (old) URL.revokeObjectURL(old);
    tell("seen");
  });
}

function placeFrames() {
  if (urls[chosen]) {
    $("main-view").src = urls[chosen];
    $("main-view").hidden = false;
  }
  for (const small of $("views").children) {
    const url = urls[small.dataset.place];
    if (url) small.firstChild.src = url;
  }
}

function choose(place) {
  chosen = place;
  $("main-name").textContent = facts.cameras[place] ?? "no camera";
  $("main-view").alt = `What the camera ${facts.cameras[place]} sees`;
  $("views").replaceChildren(...facts.cameras.flatMap((name, other) => {
    if (other === place) return [];
    const small = element("button", {title: `show ${name}`, onclick: () => choose(other)},
      element("img", {alt: ""}), element("span", {textContent: name}));
    small.dataset.place = other;
    return [small];
  }));
  placeFrames();
}

// ---- what stays the same

function showFacts(data) {
  facts = data;
  $("robot").textContent = facts.robot;
  document.title = `${facts.robot}: drive and record`;
  offerInstructions();
  choose(Math.min(chosen, Math.max(facts.cameras.length - 1, 0)));
  controls = {};
  const parts = new Map();
  for (const widget of facts.widgets) parts.set(widget.part, [...parts.get(widget.part) ?? [], widget]);
  $("parts").replaceChildren(...[...parts].map(([label, widgets]) => element("div", {className: "part"},
    element("div", {}, ...widgets.map(makeWidget)), element("span", {textContent: label}))));
  $("keys").replaceChildren(...facts.legend.flatMap(({keys, label}) => [
    element("dt", {}, ...keys.flatMap(key => [element("kbd", {textContent: key}), " "])),
    element("dd", {textContent: label}),
  ]));
}

let recorded = [];                 // instructions of the episodes in the list

function offerInstructions() {  // those of the simulator, and those that were recorded already
  const texts = new Set([...facts.instructions, ...recorded].filter(Boolean));
  $("known").replaceChildren(...[...texts].map(value => element("option", {value})));
}

// ---- what changes

function showState() {
  const recorder = state.recorder, phase = recorder?.state ?? "";
  const mine = state.driver === "me";
  const shown = {
    "": "", ready: "", "waiting for the scene": "the scene begins", countdown: `starts in ${recorder?.remaining_s} s`,
    recording: `● ${(recorder?.ticks / facts.rate_hz).toFixed(1)} s`, saving: "saving",
  }[phase];
  pill("phase", shown, phase === "recording" ? "live" : "");
  const free = phase === "ready";
  $("start").hidden = Boolean(phase) && !free;
  $("start").disabled = !free;
  for (const id of ["success", "failure"]) $(id).hidden = phase !== "recording";
  $("discard").hidden = !["waiting for the scene", "countdown", "recording"].includes(phase);
  $("instruction").disabled = !free;
  if (document.activeElement !== $("instruction") && recorder) $("instruction").value = recorder.instruction;
  $("next-scene").hidden = !state.scene;
  $("next-scene").disabled = !free;
  $("report").textContent = recorder?.problem || recorder?.cadence || "";
  $("report").className = recorder?.problem ? "bad" : "";
  $("wheel").textContent = mine ? (facts.policy ? "Give back" : "Let go") : state.driver === "other" ? "Somebody else drives" : "Drive";
  $("wheel").classList.toggle("driving", mine);
  $("wheel").disabled = !state.driver || state.driver === "other" || state.stopped;
  $("parts").inert = !mine;
  $("rearm").hidden = !state.rearm;
  $("stop").textContent = state.stopped ? "Stopped" : "Stop";
  $("stop").setAttribute("aria-pressed", Boolean(state.stopped));
  const reasons = state.reasons ?? ["There is no connection to the server."];
  $("why").textContent = reasons.length ? reasons.join(" ")
    : state.scene?.success ? "The simulator says that the task is done." : "You drive.";
  $("why").classList.toggle("fine", !reasons.length);
  if (!mine) rest();
}

// ---- driving: positions of controls from keys, touch and gamepad

let controls = {};                 // name -> {set: position by touch, shown(position)}
const pressed = new Set(), sent = {text: "", at: 0};
const clip = value => Math.max(-1, Math.min(1, value));

function rest() {
  pressed.clear();
  for (const control of Object.values(controls)) {
    control.was = control.touch || control.was;  // what a toggle was at last: the robot stays there
    control.touch = 0;
  }
}

function beginScene() {  // in simulation the gripper is then as the scene has it
  if (state.scene) for (const control of Object.values(controls)) control.touch = control.was = 0;
}

function makeWidget(widget) {
  return {stick: makePad, lever: makePad, toggle: makeToggle, hold: makeHold}[widget.kind](widget);
}

function makePad(widget) {
  const knob = element("div", {className: "knob"});
  const labels = Object.entries(widget.labels).map(([way, textContent]) => element("span", {className: way, textContent}));
  const pad = element("div", {className: `pad ${widget.kind}`}, ...labels, knob);
  const at = {x: 0, y: 0};
  const show = () => {
    const box = pad.getBoundingClientRect(), reach = box.height / 2 - 24;
    const x = widget.x ? position(widget.x.name) * widget.x.sign : 0, y = position(widget.y.name) * widget.y.sign;
    knob.style.transform = `translate(${x * reach}px, ${-y * reach}px)`;
    pad.classList.toggle("moved", Boolean(x || y));
  };
  const move = event => {
    const box = pad.getBoundingClientRect(), reach = box.height / 2 - 24;
    at.x = widget.x ? (event.clientX - box.left - box.width / 2) / reach : 0;
    at.y = -(event.clientY - box.top - box.height / 2) / reach;
    const length = Math.max(Math.hypot(at.x, at.y), 1);
    if (widget.x) controls[widget.x.name].touch = clip(at.x / length) * widget.x.sign;
    controls[widget.y.name].touch = clip(at.y / length) * widget.y.sign;
    steer();
  };
  const end = () => {
    pad.onpointermove = null;
    if (widget.x) controls[widget.x.name].touch = 0;
    controls[widget.y.name].touch = 0;
    steer();
  };
  pad.onpointerdown = event => {
    pad.setPointerCapture(event.pointerId);
    pad.onpointermove = move;
    move(event);
  };
  pad.onpointerup = pad.onpointercancel = pad.onlostpointercapture = end;
  for (const axis of [widget.x, widget.y]) if (axis) controls[axis.name] = {touch: 0, show};
  pad.dataset.control = widget.y.name;
  return pad;
}

function makeToggle(widget) {
  const button = element("button", {onclick: () => flip(widget.name)});
  const show = () => {
    const value = position(widget.name) || controls[widget.name].was;
    button.textContent = value > 0 ? widget.low : widget.high;  // what a press does
    button.setAttribute("aria-pressed", value > 0);
  };
  controls[widget.name] = {touch: 0, was: 0, show};
  show();
  return button;
}

function flip(name) {
  const {touch, was} = controls[name];
  controls[name].touch = (touch || was) > 0 ? -1 : 1;
  steer();
}

function makeHold(widget) {
  const button = element("button", {textContent: widget.hint});
  const set = value => () => { controls[widget.name].touch = value; steer(); };
  button.onpointerdown = set(1);
  button.onpointerup = button.onpointercancel = button.onpointerleave = set(0);
  controls[widget.name] = {touch: 0, show: () => button.setAttribute("aria-pressed", position(widget.name) > 0)};
  return button;
}

function position(name) {
  let value = controls[name]?.touch ?? 0;
  for (const code of pressed) {
    const key = facts.keys[code];
    if (key?.name === name) value += key.value;
  }
  return clip(value + (gamepad[name] ?? 0));
}

function steer() {
  for (const control of Object.values(controls)) control.show();
  if (state.driver !== "me") return;
  const axes = {};
  for (const name of Object.keys(controls)) {
    const value = position(name);
    if (value) axes[name] = Math.round(value * 1000) / 1000;
  }
  const text = JSON.stringify(axes), now = performance.now();
  if (text === sent.text && now - sent.at < KEEP_MS) return;
  Object.assign(sent, {text, at: now});
  tell("steer", {axes});
}

const typing = () => document.activeElement?.tagName === "INPUT" || $("player").open;

addEventListener("keydown", event => {
  const key = facts.keys[event.code];
  if (event.code === "Escape") $("player").close();
  if (typing() || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.code === "Escape") release();
  if (!key || state.driver !== "me") return;
  event.preventDefault();
  if (event.repeat) return;
  if (key.toggles) return flip(key.name);
  pressed.add(event.code);
  steer();
});
addEventListener("keyup", event => { if (pressed.delete(event.code)) steer(); });
addEventListener("blur", () => { pressed.clear(); steer(); });
document.addEventListener("visibilitychange", () => { if (document.hidden) release(); });
addEventListener("pagehide", () => release());

let gamepad = {}, buttonWasDown = false;

function readGamepad() {
  gamepad = {};
  const pad = navigator.getGamepads?.().find(Boolean);
  if (!pad || state.driver !== "me") return;
  const sticks = facts.widgets.filter(widget => widget.kind === "stick");
  const levers = facts.widgets.filter(widget => widget.kind === "lever");
  const second = pad.buttons[4]?.pressed || pad.buttons[5]?.pressed ? 1 : 0;  // a shoulder: the next ones
  const set = (axis, value) => {
    if (axis && Math.abs(value) > DEAD_ZONE) gamepad[axis.name] = value * axis.sign;
  };
  const follow = (stick, x, y) => { set(stick?.x, pad.axes[x] ?? 0); set(stick?.y, -(pad.axes[y] ?? 0)); };
  follow(sticks[0], 0, 1);
  follow(sticks[1 + second], 2, 3);
  set(levers[second]?.y, (pad.buttons[7]?.value ?? 0) - (pad.buttons[6]?.value ?? 0));
  const toggle = facts.widgets.find(widget => widget.kind === "toggle"), down = pad.buttons[0]?.pressed;
  if (toggle && down && !buttonWasDown) flip(toggle.name);
  buttonWasDown = down;
}

setInterval(() => { readGamepad(); steer(); }, KEEP_MS / 2);

// ---- buttons

$("wheel").onclick = () => {
  rest();
  if (state.driver === "me") release(Boolean(facts.policy));
  else ask("take");
  $("wheel").blur();  // the space bar belongs to the robot now
};
$("start").onclick = () => { ask("start"); $("start").blur(); };
const end = (action, values) => () => { beginScene(); ask(action, values); };
$("success").onclick = end("stop", {success: true});
$("failure").onclick = end("stop", {success: false});
$("discard").onclick = end("discard");
$("stop").onpointerdown = $("stop").onclick = stop;  // a finger that slips stops the robot, too; keys click
$("rearm").onclick = () => ask("rearm");
$("next-scene").onclick = end("scene", {same: false});
$("instruction").onchange = () => {
  const text = $("instruction").value.trim();
  if (!text) return;
  beginScene();
  ask("instruct", {text}).then(() => $("instruction").blur());
};
$("undo").onclick = () => ask("undo").then(({ok, text}) => { if (ok) toast(text); });

// ---- episodes

function showEpisodes(list) {
  $("count").textContent = list.length || "";
  recorded = list.map(episode => episode.instruction);
  offerInstructions();
  const empty = element("li", {className: "empty", textContent: "Nothing is recorded yet."});
  $("episodes").replaceChildren(...(list.length ? list.map(showEpisode) : [empty]));
}

function showEpisode(episode) {
  const {name, problem} = episode;
  if (problem) return element("li", {className: "empty", textContent: `${name}: ${problem}`});
  const path = `episodes/${encodeURIComponent(name)}`;
  const change = (action, values) => ask(action, {episode: name, ...values}).then(({ok, text}) => { if (ok) toast(text); });
  const judge = success => change("label", {success, instruction: null});
  const title = element("b", {textContent: episode.instruction, title: episode.instruction});
  const rename = () => {  // in its place: a prompt would cover the page, and Stop
    const input = element("input", {value: episode.instruction, maxLength: 1000, ariaLabel: "Instruction of this episode"});
    input.onchange = () => {
      const text = input.value.trim();
      if (text && text !== episode.instruction) change("label", {success: null, instruction: text});
    };
    input.onblur = () => input.replaceWith(title);
    input.onkeydown = ({code}) => {
      if (code === "Escape") input.value = episode.instruction;
      if (["Enter", "Escape"].includes(code)) input.blur();
    };
    title.replaceWith(input);
    input.focus();
  };
  const button = (textContent, title, look, onclick, pressed) => {
    const made = element("button", {textContent, title, className: look, onclick});
    if (pressed !== undefined) made.setAttribute("aria-pressed", pressed);
    return made;
  };
  const picture = element("img", {alt: "", loading: "lazy", src: `${path}/thumbnail.jpg?${episode.version}`});
  const thumb = element("button", {className: "thumb", title: `play ${name}`, onclick: () => play(episode, path)}, picture);
  return element("li", {}, thumb,
    element("div", {}, title,
      element("small", {textContent: `${name.replace(/\.\w+$/, "")} · ${episode.seconds} s · ${episode.ticks} ticks`})),
    element("div", {className: "acts"},
      button("✓", "success", "yes", () => judge(true), episode.success === true),
      button("✗", "failure", "no", () => judge(false), episode.success === false),
      button("Edit", "change the instruction", "quiet", rename),
      button("Delete", "delete this episode", "quiet", () => change("delete", {}))));
}

function play(episode, path) {
  release();
  $("playing").textContent = episode.instruction;
  $("drawing").hidden = false;
  $("drawing").textContent = "The film is being drawn …";
  $("film").src = `${path}/film.mp4?${episode.version}`;
  $("player").show();  // not modal, which would take Stop away
  $("close").focus();
}
$("film").onloadeddata = () => { $("drawing").hidden = true; };
$("film").onerror = () => { if ($("player").open) $("drawing").textContent = "This episode cannot be played."; };
$("close").onclick = () => $("player").close();
$("player").onclose = () => { $("film").removeAttribute("src"); $("film").load(); };

connect();
