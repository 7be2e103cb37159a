/* A button that opens a chat, for pages of any site:

     <script src="https://SERVICE/chat.js" data-key="sk-aw-..." defer></script>

   The key is public: make it with the scope `chat`. `data-title` names the chat, `data-open` opens it with the page.
   The chat is a frame of the service, so that scripts of this page read none of it. */
(() => {
  "use strict";
  const script = document.currentScript, { key, title = "Chat", open } = script.dataset;
  const address = new URL("chat", script.src);
  address.hash = new URLSearchParams({ title, ...(key ? { key } : {}) });
  const style = new CSSStyleSheet(); // a content security policy of the page allows it
  style.replaceSync(`
    :host { all: initial; }
    button { background: #2f5f94; border: 0; border-radius: 2rem; bottom: 1rem; box-shadow: 0 2px 8px #0006; color: #fff; cursor: pointer;
      font: 1rem/1.4 system-ui, sans-serif; padding: .7rem 1.2rem; position: fixed; right: 1rem; z-index: 2147483646; }
    button:focus-visible { outline: 3px solid #fff; outline-offset: -6px; }
    iframe { background: Canvas; border: 1px solid #8888; border-radius: .6rem; bottom: 4.5rem; box-shadow: 0 4px 24px #0006; color-scheme: light dark;
      height: min(38rem, calc(100dvh - 6rem)); position: fixed; right: 1rem; width: min(26rem, calc(100vw - 2rem)); z-index: 2147483647; }
    iframe[hidden] { display: none; }
    @media (max-width: 30rem) { iframe { border: 0; border-radius: 0; height: 100dvh; inset: 0; width: 100vw; } }`);
  const host = document.createElement("div"), root = host.attachShadow({ mode: "open" });
  const button = document.createElement("button"), frame = document.createElement("iframe");
  root.adoptedStyleSheets = [style];
  button.type = "button";
  button.textContent = title;
  frame.title = title;
  frame.hidden = true;
  root.append(button, frame);

  function show(is) {
    if (is && !frame.src) frame.src = address.href;
    frame.hidden = !is;
    button.setAttribute("aria-expanded", String(is));
  }

  button.addEventListener("click", () => {
    show(frame.hidden);
    if (!frame.hidden) frame.focus();
  });
  addEventListener("message", (event) => {
    if (event.source !== frame.contentWindow || event.origin !== address.origin || event.data !== "armwise-close") return;
    show(false);
    button.focus();
  });
  document.body.append(host);
  show(open !== undefined);
})();
