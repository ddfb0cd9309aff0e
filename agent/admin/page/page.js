// What the page shows is asked from the admin interface: /status.json, /explain, /rehearsal, /history, /content and
// /diff, and what happens from /events, as server-sent events. All text goes into the document as text, never as HTML.

const $ = (selector) => document.querySelector(selector);

// el returns an element with properties (class, text, on… and attributes) and children.
function el(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name === "text") e.textContent = value;
    else if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

const state = {
  status: null, graph: [], rehearsal: null, events: [],
  skew: 0, // of the agent's clock, in milliseconds
  goneSince: null, started: "",
};

const maxEvents = 500, maxNodes = 400;

// now is the agent's time.
const now = () => Date.now() + state.skew;

// plural returns a number with its noun.
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// lasting returns milliseconds as a person says them.
function lasting(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

// ago returns how long ago a time was; "never" for none.
const ago = (time) => (time ? `${lasting(now() - Date.parse(time))} ago` : "never");

// stamp returns a time in UTC, as the log and the commands write it.
const stamp = (time) => new Date(time).toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z");

const clock = (time) => new Date(time).toISOString().slice(11, 23);

const shown = new WeakMap(); // what put gave to each element

// put gives an element new children if they differ from those it has. Focus and scroll positions stay.
function put(container, ...children) {
  const next = el("div", {}, ...children), html = next.innerHTML;
  if (shown.get(container) === html) return;
  shown.set(container, html);
  const focused = container.contains(document.activeElement) && document.activeElement.dataset.key;
  const top = container.scrollTop;
  container.replaceChildren(...next.childNodes);
  container.scrollTop = top;
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  reach();
}

// reach lets the keyboard scroll what is wider than its place, and only that.
function reach() {
  for (const e of document.querySelectorAll(".wide")) {
    if (e.scrollWidth > e.clientWidth) e.tabIndex = 0;
    else e.removeAttribute("tabindex");
  }
}

const tag = (text, kind) => el("span", { class: `tag ${kind || ""}`, text });

// table returns a table; the first cell of each row is its heading. A column that is an object {num} has numbers.
function table(caption, columns, rows) {
  const head = columns.map((c) => el("th", { scope: "col", class: c.num ? "num" : undefined, text: c.num || c }));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, i) => {
    const e = el(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : undefined, class: columns[i].num ? "num" : undefined });
    e.append(cell);
    return e;
  })));
  return el("div", { class: "wide", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { text: caption }), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

// address is the flag with which a command reaches this agent.
function address() {
  const admin = state.status?.admin;
  return admin && admin !== "unix:/run/holdfast/admin.sock" ? ` --admin ${quoted(admin)}` : "";
}

// quoted returns a text as one word of a shell.
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// command shows a command, to copy; as a span within a text.
function command(text, kind = "div") {
  return el(kind, { class: "command" }, el("code", { text }), " ",
    el("button", { type: "button", "data-key": `copy ${text}`, "aria-label": `Copy ${text}`, text: "Copy", onclick: (e) => copy(text, e.currentTarget) }));
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    $("#copied").textContent = `Copied: ${text}`;
  } catch { // not allowed: what is selected can be copied by keyboard
    getSelection().selectAllChildren(button.parentElement.firstChild);
    $("#copied").textContent = "Selected: copy it with the keyboard";
  }
}

// prose returns text whose parts in backquotes are commands, to copy.
function prose(text) {
  return text.split("`").flatMap((part, i) => (i % 2 ? command(part, "span") : [document.createTextNode(part)]));
}

async function ask(path, query = {}) {
  const set = Object.entries(query).filter(([, v]) => v);
  const answer = await fetch(path + (set.length ? `?${new URLSearchParams(set)}` : ""), { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

// The banner: what is served, and whether that is what the control plane says.

function banner() {
  const s = state.status;
  if (state.goneSince) return ["gone", "The agent does not answer", `since ${stamp(state.goneSince)}. ${s ? "What follows is what it said before." : ""}`];
  const groups = s.groups, failing = s.conditions.filter((c) => !c.ok);
  const upstreams = groups.flatMap((g) => g.upstreams || []);
  const connected = [...new Set(upstreams.filter((u) => u.connected && u.active).map((u) => u.name))];
  const fallback = groups.find((g) => g.fallback), frozen = groups.find((g) => g.freeze), seed = groups.find((g) => g.seed?.used);
  if (fallback) return ["fallback", "Fallen back", `since ${stamp(fallback.fallback.since)}: Envoy crashed with ${plural(fallback.fallback.suspects.length, "resource")}, and what it ran with before is served.`];
  if (failing.length) return ["failing", "Not ready", failing.map((c) => `${c.name}: ${c.reason}`).join("; ")];
  if (frozen) {
    const f = frozen.freeze, waiting = Object.values(f.waiting || {}).reduce((a, b) => a + b, 0);
    return ["frozen", f.rolled_back ? "Rolled back and frozen" : "Frozen", `since ${stamp(f.since)}${f.by ? ` by ${f.by}` : ""}: ${f.reason || "no reason given"}. ${plural(waiting, "change")} of the control plane not served.`];
  }
  if (seed) return ["kept", "Served from a seed", `of the role ${seed.seed.role}, taken ${stamp(seed.seed.at)}: no control plane has answered yet.`];
  if (!groups.length) return ["waiting", "No client yet", "Nothing is asked of the control plane until Envoy connects, or --bootstrap or --node-id says who it is."];
  const alone = groups.filter((g) => (g.upstreams || []).length && !g.upstreams.some((u) => u.connected));
  if (alone.length) {
    const since = alone.map((g) => g.contact).filter(Boolean).sort()[0];
    return ["kept", "Last known good", since ? `No control plane is connected; the last one answered at ${stamp(since)}.` : "No control plane has answered yet."];
  }
  return ["live", "Live", connected.length ? `Connected to ${connected.join(", ")}.` : "Connected."];
}

function renderBanner() {
  const [kind, title, text] = banner();
  const count = state.status?.problems.length || 0;
  const b = $("#banner");
  b.dataset.state = kind;
  put(b, el("strong", { text: title }), " ", el("span", { text: text + (count && kind !== "gone" ? ` ${plural(count, "problem")}.` : "") }));
  document.body.classList.toggle("gone", kind === "gone");
  document.title = `${kind === "live" && !count ? "" : "⚠ "}holdfast: ${title}`;
}

// The sections.

function renderProblems() {
  const list = state.status.problems;
  put($("#problems .body"), list.length === 0
    ? el("p", { class: "good", text: "None." })
    : el("ul", {}, ...list.map((p) => el("li", { class: `problem ${p.level}`, title: p.since ? `since ${stamp(p.since)}` : undefined },
      tag(p.level, p.level === "error" ? "bad" : "warn"), " ", ...prose(p.text)))));
}

function renderAway() {
  const r = state.rehearsal;
  if (!r) return;
  const losses = r.losses.length === 0
    ? [el("p", { class: "good", text: "Nothing would be missing, also after a restart of Envoy or of the agent." })]
    : [el("p", { class: "bad", text: `${plural(r.losses.length, "thing")} would be missing:` }),
      el("ul", {}, ...r.losses.slice(0, 20).map((l) => el("li", { class: "problem error" }, `after ${l.after}: `, el("strong", { text: l.what }), `: ${l.why}`)))];
  const served = r.groups.flatMap((g) => Object.keys(g.served).map((kind) => [r.groups.length > 1 ? `${kind}, ${g.node}` : kind, String(g.served[kind]), g.stored ? String(g.stored[kind] ?? 0) : "?"]));
  const ends = (r.ends || []).slice(0, 8).map((e) => el("li", {}, el("strong", { text: `in ${lasting(Date.parse(e.at) - now())}` }), ` ${e.what}: ${e.then}`));
  const pod = r.new_pod
    ? `A new pod would be served from the seed in ${r.new_pod.place}${r.new_pod.at ? `, taken ${ago(r.new_pod.at)}` : ""}.`
    : "A new pod would get nothing: there is no seed.";
  put($("#away .body"), ...losses,
    served.length ? table("What would be served", ["Type", { num: "Now" }, { num: "After a restart of the agent" }], served) : null,
    ends.length ? el("h3", { text: "What would end, if it stayed away" }) : null, ends.length ? el("ul", {}, ...ends) : null,
    el("p", { text: pod }),
    el("p", { class: "soft" }, `As of ${stamp(r.at)}. `, el("button", { type: "button", "data-key": "again", text: "Look again", onclick: refreshAway })));
}

const standings = [["accepted", "ACKed"], ["pending", "Pending"], ["suspect", "Suspect"], ["rejected", "NACKed"]];

function renderTypes() {
  const groups = state.status.groups;
  put($("#types .body"), ...(groups.length ? groups.map((g) => table(
    `Resources for node ${g.node_id}${g.restored ? `: ${plural(g.restored, "resource")} from disk, not confirmed by a control plane yet` : ""}`,
    ["Type", "Known", ...standings.map(([, title]) => ({ num: title })), { num: "Subscribed" }, "Last update"],
    (g.types || []).map((t) => [t.type, t.knowledge, ...standings.map(([key]) => {
      const n = t.resources?.[key] || 0;
      return el("span", { class: n && key === "rejected" ? "bad" : n && key === "suspect" ? "warn" : undefined, text: String(n) });
    }), String(t.subscriptions), ago(t.last_update)]),
  )) : [el("p", { class: "soft", text: "None yet." })]));
}

function renderUpstreams() {
  const groups = state.status.groups;
  const kind = (u) => (u.stale ? ["silent for too long", "bad"] : u.connected && u.active ? ["in use", "good"] : u.connected ? ["connected", "good"] : u.active ? ["not connected, its resources are served", "warn"] : ["not connected", ""]);
  put($("#upstreams .body"), ...groups.map((g) => table(`Control planes of node ${g.node_id}`, ["Address", "State", "Since", "Last message", "Last error"],
    (g.upstreams || []).map((u) => [u.name, tag(...kind(u)), u.since ? stamp(u.since) : "-", ago(u.last_message), (!u.connected && u.last_error) || "-"]))),
  groups.length ? null : el("p", { class: "soft", text: "None is asked yet." }));
}

function renderClients() {
  const streams = state.status.streams, envoy = state.status.envoy;
  const waiting = (s) => Object.entries(s.unanswered || {}).filter(([, since]) => now() - Date.parse(since) > 1000).map(([type, since]) => `${type} for ${lasting(now() - Date.parse(since))}`);
  put($("#clients .body"),
    envoy ? el("p", { text: envoy.pid ? `Envoy ${envoy.version || ""}, process ${envoy.pid}: ${envoy.state || "it does not answer"}${envoy.restarts ? `; crashed ${plural(envoy.restarts, "time")}` : ""}` : "Envoy is not running." }) : null,
    streams.length ? table(plural(streams.length, "stream"), ["Stream", "Node", "Protocol", "Since", "Types", "No answer yet"],
      streams.map((s) => [String(s.id), s.node_id || "-", s.protocol, stamp(s.since), (s.types || []).join(" "), waiting(s).join(", ") || "-"]))
      : el("p", { class: "warn", text: "No client is connected." }));
}

function renderCertificates() {
  const c = state.status.certificates;
  $("#certificates").hidden = !c;
  if (!c) return;
  const faults = [...(c.faults || []), ...(c.files || []).filter((f) => f.error).map((f) => `${f.name}: ${f.error}`)];
  put($("#certificates .body"), ...(c.identities || []).map((id) => {
    const from = Date.parse(id.not_before), until = Date.parse(id.not_after), left = until - now();
    const share = id.not_after ? Math.max(0, Math.min(1, left / (until - from))) : 0;
    const text = !id.not_after ? "none yet" : left <= 0 ? `expired ${lasting(-left)} ago` : `${lasting(left)} left of ${lasting(until - from)}`;
    const kind = left > 0 && !id.error ? "" : left > 0 ? "warn" : "bad";
    const fill = el("div");
    fill.style.width = `${100 * share}%`;
    return el("div", {}, el("p", {}, el("strong", { text: id.secret }), ` ${id.names}, from ${id.ca}: ${text}`),
      el("div", { class: `bar ${kind}`, role: "meter", "aria-label": `Remaining life of ${id.secret}`, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share), "aria-valuetext": text }, fill),
      id.error ? el("p", { class: kind, text: `${plural(id.failed_attempts, "failed attempt")}: ${id.error}` }) : null,
      id.next_attempt ? el("p", { class: "soft", text: `The next is requested at ${stamp(id.next_attempt)}.` }) : null);
  }), ...(faults.length ? [el("ul", {}, ...faults.map((f) => el("li", { class: "problem error", text: f })))] : []),
  el("p", { class: "soft", text: `${plural((c.roots || []).length, "root certificate")} trusted.` }));
}

function renderCommands() {
  const s = state.status, at = address(), held = s.groups.some((g) => g.freeze || g.fallback);
  put($("#commands .body"), el("p", { class: "soft", text: "This page changes nothing. To act, run:" }),
    ...[held ? ["End the freeze or the fallback", `holdfast resume${at}`] : ["Serve what is served now, whatever the control plane sends", `holdfast freeze${at} --for 2h --reason TEXT`],
      ["What a rollback would change", `holdfast rollback${at} --dry-run`], ["Back to what Envoy had accepted before the last change", `holdfast rollback${at}`],
      ["What changed within the last hour", `holdfast diff${at} --since 1h`],
      ["Cut the agent off from its control plane for 30 s, and see", `holdfast rehearse${at} --live 30s`]]
      .flatMap(([title, text]) => [el("p", { text: title }), command(text)]));
}

// References.

const key = (type, name) => `${type}/${name}`;

// resource is a link to the dialog of a resource.
function resource(type, name, node, kind) {
  return el("button", { type: "button", class: `name ${kind || ""}`, "data-key": key(type, name), text: key(type, name), onclick: () => show(type, name, node) });
}

function tags(n) {
  const all = [];
  if (n.missing) all.push(n.has_default ? tag("missing: a default is used", "warn") : tag("missing", "bad"));
  if (n.standing === "rejected") all.push(tag("NACKed", "bad"));
  if (n.standing === "suspect") all.push(tag("suspect", "warn"));
  if (n.standing === "pending" && !n.missing) all.push(tag("no ACK yet"));
  if (n.error && !n.missing) all.push(tag("error", "bad"));
  if (n.frozen) all.push(tag("frozen", "warn"));
  if (n.removal_held_back) all.push(tag("removal held back", "warn"));
  if (n.restored) all.push(tag("from disk", ""));
  return all;
}

// tree returns the items of a node that pass the search, and counts them in budget.
function tree(n, node, search, budget) {
  const below = (n.leads_to || []).map((c) => tree(c, node, search, budget)).filter(Boolean);
  const name = key(n.type, n.name), matches = !search || name.toLowerCase().includes(search);
  budget.all.add(name);
  if (!matches && !below.length) return null;
  if (matches) budget.matching.add(name);
  if (budget.shown++ >= maxNodes) return null;
  return el("li", {}, resource(n.type, n.name, node, n.missing && !n.has_default ? "bad" : ""), " ",
    ...tags(n).flatMap((t) => [t, " "]), n.field ? el("span", { class: "field", text: n.field }) : null,
    n.repeated ? el("span", { class: "field", text: " (see above)" }) : null, below.length ? el("ul", {}, ...below) : null);
}

function renderGraph() {
  const search = $("#search").value.trim().toLowerCase(), budget = { all: new Set(), matching: new Set(), shown: 0 };
  const parts = state.graph.flatMap((g) => {
    const of = (nodes) => (nodes || []).map((n) => tree(n, g.node, search, budget)).filter(Boolean);
    const listeners = of(g.listeners), others = of(g.others);
    const dangling = (g.dangling || []).filter((d) => !search || `${d.from} ${d.to}`.toLowerCase().includes(search));
    return [
      state.graph.length > 1 ? el("h3", { text: `Node ${g.node}` }) : null,
      dangling.length ? el("div", {}, el("p", { class: "bad", text: `${plural(dangling.length, "reference")} to what is not there:` }),
        el("ul", {}, ...dangling.slice(0, 50).map((d) => el("li", { class: "problem error" },
          resource(...split(d.from), g.node), " → ", el("span", { class: "bad", text: d.to }), " ", el("span", { class: "field soft", text: d.field }))))) : null,
      listeners.length ? el("ul", { class: "tree" }, ...listeners) : null,
      others.length ? el("div", {}, el("h3", { text: "Nothing leads to" }), el("ul", { class: "tree" }, ...others)) : null,
    ];
  });
  const more = Math.max(0, budget.shown - maxNodes);
  put($("#references .body"), ...parts, more ? el("p", { class: "soft", text: `${more} more are not shown: search for a part of a name.` }) : null,
    budget.all.size ? null : el("p", { class: "soft", text: "Nothing is known yet." }));
  $("#search-note").textContent = search ? `${budget.matching.size} of ${plural(budget.all.size, "resource")}` : "";
}

// split returns type and name of TYPE/NAME.
function split(text) {
  const i = text.indexOf("/");
  return [text.slice(0, i), text.slice(i + 1)];
}

// Events.

function renderEvents() {
  const search = $("#event-search").value.trim().toLowerCase(), warnings = $("#event-warnings").checked;
  const line = (e) => `${e.text} ${e.type || ""} ${e.name || ""} ${(e.details || []).map((d) => `${d.key}=${d.value}`).join(" ")}`;
  const list = state.events.filter((e) => (!warnings || e.level !== "INFO") && (!search || `${line(e)} ${(e.names || []).join(" ")}`.toLowerCase().includes(search)));
  put($("#events .body"), list.length ? el("ul", {}, ...list.slice(-200).reverse().map((e) => el("li", { class: "event" },
    el("time", { datetime: e.time, title: stamp(e.time), text: clock(e.time) }), " ", e.level === "INFO" ? null : tag(e.level, e.level === "ERROR" ? "bad" : "warn"), " ", e.text, " ",
    ...(e.counts ? (e.names || []).slice(0, 5).flatMap((name) => [resource(e.type, name, e.node), " "]) : [e.type ? `type=${e.type} ` : "", e.name ? `name=${e.name} ` : "",
      el("span", { class: "soft", text: (e.details || []).map((d) => `${d.key}=${d.value}`).join(" ") })]))))
    : el("p", { class: "soft", text: "None." }));
}

// The dialog of a resource. The address of the page names it, so that it can be sent to a colleague.

const dialog = $("#resource");

function show(type, name, node) {
  location.hash = `#${new URLSearchParams({ type, name, ...(node ? { node } : {}) })}`;
}

function follow() {
  const q = new URLSearchParams(location.hash.slice(1));
  if (q.get("type") && q.has("name")) open(q.get("type"), q.get("name"), q.get("node") || "");
  else if (dialog.open) dialog.close();
}

let opened = 0; // the number of the dialog, so that answers for the one before are not shown

async function open(type, name, node) {
  const mine = ++opened, title = key(type, name), body = dialog.querySelector(".body");
  $("#h-resource").textContent = title;
  body.replaceChildren(el("p", { class: "soft", text: "Loading…" }));
  if (!dialog.open) dialog.showModal();
  const q = { resource: title, node };
  const failed = (err) => ({ failed: err.message });
  const [explained, history] = await Promise.all([ask("explain", { type, name, node }).catch(failed), ask("history", { type, name, node }).catch(failed)]);
  const there = explained.failed || explained.some((x) => x.resource && !x.resource.missing);
  const served = there ? await ask("content", { ...q, which: "served", yaml: "true" }).catch(failed) : { failed: "It is not served." };
  if (mine !== opened) return;
  const at = address(), versions = history.failed ? [] : history.flatMap((h) => h.versions.map((v) => ({ ...v, node: h.node, began: h.began })));
  const choices = ["served", "held", "accepted", "previous", "stable", "stored", "upstream"];
  const choose = (label, id) => el("label", {}, `${label} `, el("select", { id, onchange: compare }, el("option", { value: "", text: "default" }),
    ...choices.map((c) => el("option", { value: c, text: c })),
    ...versions.filter((v) => v.version && v.kept).map((v) => el("option", { value: v.version, text: `version ${v.version}` }))));
  const difference = el("div", { id: "difference" });
  async function compare() {
    const found = await ask("diff", { ...q, a: $("#a").value, b: $("#b").value }).catch(failed);
    if (mine === opened) difference.replaceChildren(...differences(found));
  }
  body.replaceChildren(
    ...(explained.failed ? [el("p", { class: "bad", text: explained.failed })] : explained.filter((x) => x.resource).flatMap((x) => facts(x, explained.length > 1))),
    el("h3", { text: "Commands" }), ...[`holdfast explain${at} ${quoted(title)}`, `holdfast rollback${at} --dry-run ${quoted(title)}`].map((c) => command(c)),
    el("h3", { text: "What changed" }),
    el("p", { class: "tools" }, choose("From", "a"), choose("to", "b")), difference,
    el("h3", { text: "History" }),
    history.failed ? el("p", { class: "soft", text: history.failed }) : versions.length ? table("Versions that clients accepted", ["From", "Until", "Version", "Upstream's version", { num: "Bytes" }],
      versions.map((v) => [v.from ? stamp(v.from) : v.began ? `before ${stamp(v.began)}` : "-", v.until ? stamp(v.until) : "now", v.version || "none", v.upstream_version || "-", v.version ? (v.kept ? String(v.size) : "not kept") : "-"]))
      : el("p", { class: "soft", text: "No version was accepted yet." }),
    el("h3", { text: "Content, as it is served" }),
    ...(served.failed ? [el("p", { class: "soft", text: served.failed })] : served.map((c) => el("pre", { tabindex: "0", "aria-label": `Content for ${c.node}`, text: c.yaml || "It is not served." }))));
  reach();
  compare();
}

// facts says what is known of a resource.
function facts(x, several) {
  const n = x.resource, rows = [];
  const row = (title, ...value) => rows.push(el("dt", { text: title }), el("dd", {}, ...value));
  if (several) row("Node", x.node);
  row("State", ...(n.missing ? [tag("missing", "bad")] : [n.standing === "accepted" ? tag("ACKed", "good") : "", ...tags(n).flatMap((t) => [" ", t])]));
  if (n.version) row("Version", el("code", { text: n.version }), n.upstream_version ? ` (the control plane's: ${n.upstream_version})` : "");
  if (n.good_version) row("Clients get", el("code", { text: n.good_version }));
  if (n.source) row("From", n.source);
  if (n.changed) row("Changed", `${stamp(n.changed)}, ${ago(n.changed)}`);
  if (n.deadline) row("Expires", stamp(n.deadline));
  if (n.reason) row("Envoy says", el("span", { class: "bad", text: n.reason }));
  if (n.error) row("Error", el("span", { class: "bad", text: n.error }));
  if (x.clients?.length) row("Clients", el("ul", {}, ...x.clients.map((c) => el("li", { text: c }))));
  if (x.referrers?.length) row("Named by", ...x.referrers.slice(0, 20).flatMap((r) => [resource(...split(r), x.node), " "]));
  if (n.leads_to?.length) row("Leads to", ...n.leads_to.slice(0, 50).flatMap((c) => [resource(c.type, c.name, x.node, c.missing && !c.has_default ? "bad" : ""), " ", ...tags(c), " "]));
  if (x.recent?.length) row("Lately", el("ul", {}, ...x.recent.map((r) => el("li", { text: r }))));
  return [el("dl", {}, ...rows)];
}

function differences(found) {
  if (found.failed) return [el("p", { class: "soft", text: found.failed })];
  if (!found.length) return [el("p", { class: "soft", text: "There is nothing to compare." })];
  return found.map((d) => {
    if (d.unknown) return el("p", { class: "soft", text: d.unknown });
    if (d.a.version === d.b.version) return el("p", { class: "soft", text: `${d.a.which} and ${d.b.which} are the same${d.b.version ? `, version ${d.b.version}` : ""}.` });
    if (!d.diff) return el("p", { class: "soft", text: `${d.a.which} and ${d.b.which} differ only in what is not shown: secrets, or the order of fields.` });
    return el("pre", { tabindex: "0", "aria-label": `Difference of ${d.a.which} and ${d.b.which}` }, ...d.diff.trimEnd().split("\n").map((line) => (
      /^[+-]/.test(line) ? el("span", { class: line[0] === "+" ? "add" : "del", text: line })
        : el("span", { class: line.startsWith("@@") ? "at" : "same", text: line || " " }))));
  });
}

$("#close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  opened++;
  if (location.hash) history.replaceState(null, "", location.pathname);
});
dialog.addEventListener("click", (e) => { if (e.target === dialog) dialog.close(); }); // beside it
addEventListener("hashchange", follow);
addEventListener("resize", reach);

// When what is asked. An agent with many resources has work with an answer: it is asked again after at least 20 times
// the time that it took.

function repeated(least, ask) {
  let timer, running = false, again = false, earliest = 0;
  async function run() {
    clearTimeout(timer);
    if (running) { again = true; return; }
    if (Date.now() < earliest) { timer = setTimeout(run, earliest - Date.now()); return; }
    running = true;
    again = false;
    const began = Date.now();
    await ask();
    running = false;
    earliest = Date.now() + Math.min(20 * (Date.now() - began), 60_000);
    timer = setTimeout(run, again ? 100 : document.hidden ? 10 * least : least);
  }
  return run;
}

const refresh = repeated(2000, async () => {
  try {
    const status = await ask("status.json");
    const restarted = state.goneSince || status.started !== state.started;
    Object.assign(state, { status, goneSince: null, started: status.started, skew: Date.parse(status.now) - Date.now() });
    if (restarted) { refreshAway(); refreshGraph(); }
  } catch {
    state.goneSince ??= new Date().toISOString();
  }
  render();
});

const refreshGraph = repeated(30_000, async () => {
  try {
    state.graph = await ask("explain");
    renderGraph();
  } catch { /* the banner says that the agent does not answer */ }
});

async function refreshAway() {
  try {
    state.rehearsal = await ask("rehearsal");
    renderAway();
  } catch { /* the same */ }
}

function render() {
  renderBanner();
  const s = state.status;
  if (!s) return;
  $("#node").textContent = s.groups.map((g) => g.node_id).slice(0, 3).join(", ");
  $("#about").textContent = `Version ${s.version}, up ${lasting(now() - Date.parse(s.started))}${s.storage ? `; last known good in ${s.storage.dir}, written ${ago(s.storage.committed)}` : "; no state directory"}`;
  for (const section of [renderProblems, renderTypes, renderUpstreams, renderClients, renderCertificates, renderCommands]) section();
}

let pending;

// changed looks anew soon after something has happened.
function changed() {
  clearTimeout(pending);
  pending = setTimeout(() => { refresh(); refreshGraph(); refreshAway(); }, 150);
}

const known = new Set(); // the events that are shown: after a lost connection some come again
let drawing;

function listen() {
  const source = new EventSource("events?since=24h");
  source.addEventListener("open", changed);
  source.addEventListener("message", (m) => {
    if (known.has(m.data)) return;
    known.add(m.data);
    state.events.push(JSON.parse(m.data));
    state.events.sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0));
    if (state.events.length > maxEvents) state.events.splice(0, state.events.length - maxEvents);
    changed();
    clearTimeout(drawing);
    drawing = setTimeout(renderEvents, 50);
  });
  source.addEventListener("error", () => {
    refresh();
    // A connection that was lost is made again by itself, but not after an answer such as a proxy's 502.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  });
}

for (const id of ["#event-search", "#event-warnings"]) $(id).addEventListener("input", renderEvents);
$("#search").addEventListener("input", renderGraph);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
setInterval(() => { if (state.status && !document.hidden) render(); }, 1000);
renderEvents();
refresh();
listen();
follow();
