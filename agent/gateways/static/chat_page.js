// The chat page: asks in one conversation, shows answers with their passages, and lets people rate them by feedback.js.
// Texts are set as text, never as HTML. Nothing is kept in the browser.
(() => {
  "use strict";
  const MOST_TURNS = 5, MOST_CHARS = 8000; // of earlier turns that are sent with a question
  const address = new URL("chat/ask", location.href).href;
  const given = new URLSearchParams(location.hash.slice(1)), key = given.get("key");
  const [log, form, field, askButton, stopButton, status] = ["log", "form", "question", "ask", "stop", "status"].map((id) =>
    document.getElementById(id));
  const empty = document.getElementById("empty");
  let turns = [], conversation = newId(), asking = null;

  const WORDS = {
    invalid_api_key: "This chat has no valid key. Please tell the owner of this site.",
    forbidden: "The key of this chat does not allow questions. Please tell the owner of this site.",
    rate_limit_exceeded: "There are too many questions at the moment. Please wait a minute, then try again.",
    overloaded: "This chat is busy. Please try again in a moment.",
    model_busy: "This chat is busy. Please try again in a moment.",
    not_ready: "This chat is starting. Please try again in a minute.",
    insufficient_quota: "This chat has used up its budget. Please come back later.",
    invalid_value: "This question cannot be answered. Please shorten it, or start a new chat.",
    context_length_exceeded: "This conversation has become too long. Please start a new chat.",
    connection: "The connection was lost. Please try again.",
    other: "Something went wrong, so there is no answer. Please try again.",
  };

  function newId() {
    return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }

  function button(className, text, act) {
    const made = make("button", className, text);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  }

  async function* eventsOf(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (left + value).split("\n\n");
      left = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }

  // fenced code becomes <pre>, [1] a link to its passage; all else stays text
  function show(element, text, cite) {
    const parts = text.split(/^ {0,3}```[^\n]*\n?/m);
    element.replaceChildren(...parts.flatMap((part, i) => {
      if (i % 2) return [make("pre", "", part.replace(/\n$/, ""))];
      return part.split(/\[(\d{1,3})\]/).map((piece, j) => (j % 2 && cite(+piece)) || (j % 2 ? `[${piece}]` : piece));
    }));
    element.querySelectorAll("pre").forEach((code) => { code.tabIndex = 0; });
  }

  function listPassages(passages, cited, token) {
    const list = make("ol");
    passages.forEach(({ title, text: content, url }, i) => {
      const item = make("li"), details = make("details"), passage = make("div", "passage", content);
      item.value = i + 1;
      item.hidden = !cited.has(i + 1);
      passage.dir = "auto";
      details.append(make("summary", "", title), passage);
      if (/^https?:\/\//i.test(url || "")) {
        const link = make("a", "", "Open the source");
        Object.assign(link, { href: url, target: "_blank", rel: "noopener noreferrer" });
        details.append(link);
      }
      if (token) details.append(rate(token, i + 1));
      item.append(details);
      list.append(item);
    });
    const others = [...list.children].filter((item) => item.hidden);
    const label = `${others.length < passages.length ? "More passages" : "Passages"} that were found (${others.length})`;
    const more = button("more", label, () => {
      others.forEach((item) => { item.hidden = false; });
      others[0].querySelector("summary").focus();
      more.remove();
    });
    return others.length ? [list, more] : [list];
  }

  function open(list, number) {
    const item = list.children[number - 1], details = item.firstChild;
    item.hidden = false;
    details.open = true;
    details.firstChild.focus();
    item.scrollIntoView({ block: "nearest" });
  }

  function rate(token, passage) {
    const element = make("div", "rating"), buttons = make("div"), said = make("span");
    said.setAttribute("role", "status");
    if (passage) {
      Object.assign(buttons.dataset, { armwisePassage: passage, up: "Good source", down: "Bad source" });
      buttons.setAttribute("aria-label", `Rate source ${passage}`);
    }
    buttons.dataset.armwiseToken = token;
    buttons.addEventListener("armwise-feedback", ({ detail }) => {
      said.textContent = !detail.ok ? "Your rating was not saved." : detail.value ? "Thank you." : "";
    });
    element.append(buttons, said);
    return element;
  }

  function end(turn, element, passages, token, remark) {
    const after = element.querySelector(".after");
    if (remark) after.append(make("p", "", remark));
    if (passages.length) {
      const cited = new Set();
      show(element.querySelector(".answer"), turn.answer, (number) => {
        if (number < 1 || number > passages.length) return null;
        const link = button("cite", `[${number}]`, () => open(after.querySelector("ol"), number));
        link.setAttribute("aria-label", `Passage ${number}: ${passages[number - 1].title}`);
        cited.add(number);
        return link;
      });
      after.append(...listPassages(passages, cited, token));
    }
    if (token) after.append(rate(token));
  }

  function fail(element, question, code) {
    const problem = element.querySelector(".problem");
    problem.firstElementChild.textContent = WORDS[code] || WORDS.other;
    problem.hidden = false;
    problem.querySelector("button").addEventListener("click", () => {
      if (asking) return;
      element.remove();
      ask(question);
    });
  }

  function follow(act) {
    const near = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    act();
    if (near) log.scrollTop = log.scrollHeight;
  }

  async function ask(question) {
    const mine = (asking = new AbortController()), turn = { question, answer: "" };
    const element = document.getElementById("turn").content.firstElementChild.cloneNode(true);
    const answer = element.querySelector(".answer");
    const earlier = turns.slice(-MOST_TURNS).flatMap((one) => [
      { role: "user", content: one.question }, { role: "assistant", content: one.answer.slice(0, MOST_CHARS) },
    ]);
    let passages = [], token = null, outcome = "connection";
    element.querySelector(".question").textContent = question;
    empty.hidden = true;
    log.append(element);
    log.scrollTop = log.scrollHeight;
    busy(true);
    status.textContent = "Writing the answer";
    try {
      const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
      const model = document.getElementById("model").value;
      const body = JSON.stringify({ conversation, model, messages: [...earlier, { role: "user", content: question }] });
      const response = await fetch(address, { method: "POST", signal: mine.signal, headers, body, credentials: "omit" });
      if (!response.ok) outcome = (await response.json().catch(() => null))?.error?.code || "other";
      else for await (const event of eventsOf(response)) {
        if (event.passages) ({ passages, token } = event);
        if (event.text) follow(() => show(answer, (turn.answer += event.text), () => null));
        if (event.error) outcome = event.error.code;
        if (event.end) outcome = event.end;
      }
    } catch {
      if (mine.signal.aborted) outcome = "stopped";
    }
    answer.setAttribute("aria-busy", "false");
    if (asking !== mine) return; // another chat has begun
    const remark = { stopped: "You stopped this answer.", cut: "The answer reached its longest length." }[outcome];
    const done = outcome === "whole" || outcome === "cut";
    follow(() => {
      if (done || remark) end(turn, element, passages, done ? token : null, remark);
      else fail(element, question, outcome);
    });
    if (turn.answer && (done || remark)) turns.push(turn);
    status.textContent = done ? turn.answer : remark || "";
    asking = null;
    busy(false);
  }

  function busy(is) {
    if (is || document.activeElement === stopButton) field.focus();
    askButton.hidden = is;
    stopButton.hidden = !is;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const question = field.value.trim();
    if (asking || !question) return;
    field.value = "";
    ask(question);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stopButton.addEventListener("click", () => asking?.abort());
  document.getElementById("new").addEventListener("click", () => {
    const before = asking;
    asking = null;
    before?.abort();
    [turns, conversation] = [[], newId()];
    log.replaceChildren(empty);
    empty.hidden = false;
    status.textContent = "";
    busy(false);
    field.focus();
  });

  if (given.get("title")) document.title = document.getElementById("title").textContent = given.get("title");
  if (parent === window) field.focus();
  else { // in the panel of chat.js, which learns that it is to close, and nothing else
    const closeButton = document.getElementById("close"), close = () => parent.postMessage("armwise-close", "*");
    closeButton.hidden = false;
    closeButton.addEventListener("click", close);
    addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
    addEventListener("focus", () => { if (document.activeElement === document.body) field.focus(); });
  }
})();
