/* Two buttons under an answer, for pages of any site:

     <script src="https://SERVICE/feedback.js" defer></script>
     <div data-armwise-token="TOKEN"></div>

   The token is of one answer (POST /v1/decisions/ID/feedback-token), so that no key is in the page. Elements that
   come later get their buttons, too. With `data-armwise-passage="2"`, they rate the second passage of the answer. A second press of a button takes the feedback back. `armwise-feedback` is
   dispatched on the element when feedback is kept or refused: detail is {value, ok, status}. */
(() => {
  "use strict";
  const address = new URL("v1/feedback/button", document.currentScript.src).href;
  const ATTRIBUTE = "data-armwise-token";
  const BUTTONS = [
    { value: "up", sign: "\u{1F44D}", label: "Good answer" },
    { value: "down", sign: "\u{1F44E}", label: "Bad answer" },
  ];
  const known = new WeakSet();

  function show(element) {
    if (known.has(element)) return;
    known.add(element);
    const state = { value: null, changes: 0, sending: Promise.resolve() };
    const buttons = BUTTONS.map((one) => {
      const button = document.createElement("button");
      const label = element.getAttribute(`data-${one.value}`) || one.label;
      button.type = "button";
      button.className = `armwise-button armwise-${one.value}`;
      button.textContent = one.sign;
      button.title = label;
      button.setAttribute("aria-label", label);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => press(element, state, buttons, one.value));
      return button;
    });
    element.setAttribute("role", "group");
    if (!element.hasAttribute("aria-label")) element.setAttribute("aria-label", "Rate this answer");
    element.append(...buttons);
  }

  function press(element, state, buttons, value) {
    const before = state.value;
    state.value = value === before ? null : value;
    mark(buttons, state.value);
    const sent = { token: element.getAttribute(ATTRIBUTE), value: state.value, change: state.changes };
    if (element.dataset.armwisePassage) sent.passage = Number(element.dataset.armwisePassage);
    state.changes += 1;
    // one after the other: a later one takes the earlier one back
    state.sending = state.sending.then(() => send(sent)).then((status) => {
      const ok = status === 202;
      if (!ok && state.value === sent.value) {
        state.value = before;
        mark(buttons, before);
      }
      if (status === 403) buttons.forEach((button) => { button.disabled = true; });
      element.dispatchEvent(
        new CustomEvent("armwise-feedback", { bubbles: true, detail: { value: sent.value, ok, status } }),
      );
    });
  }

  async function send(body) {
    try {
      const headers = { "content-type": "application/json" };
      const text = JSON.stringify(body);
      return (await fetch(address, { method: "POST", headers, body: text, credentials: "omit", keepalive: true }))
        .status;
    } catch {
      return 0;
    }
  }

  function mark(buttons, value) {
    buttons.forEach((button, place) => {
      button.setAttribute("aria-pressed", String(BUTTONS[place].value === value));
    });
  }

  function scan(root) {
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    if (root.hasAttribute(ATTRIBUTE)) show(root);
    root.querySelectorAll(`[${ATTRIBUTE}]`).forEach(show);
  }

  function begin() {
    scan(document.documentElement);
    const options = { subtree: true, childList: true, attributes: true, attributeFilter: [ATTRIBUTE] };
    new MutationObserver((changes) => {
      changes.forEach((change) => {
        if (change.type === "attributes") scan(change.target);
        change.addedNodes.forEach(scan);
      });
    }).observe(document.documentElement, options);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
