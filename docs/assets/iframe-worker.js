"use strict";
// The search of the site runs in a Worker, which browsers refuse to pages from file://. This stand-in runs its
// script in a hidden frame. The site's generator would fetch one from another host.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.receive = event => {
        if (event.source !== this.inner) return;
        const message = new MessageEvent("message", {data: event.data});
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      addEventListener("message", this.receive);
      this.ready = new Promise(resolve => {
        this.inner.started = resolve;
      });
      const source = new URL(url, document.baseURI).href.replaceAll('"', "%22");
      this.inner.document.open();
      this.inner.document.write(
        "<!doctype html><body><script>" +
        "postMessage = data => parent.dispatchEvent(new MessageEvent('message', {data, source: window}));" +
        "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve, reject) => {" +
        "const script = document.createElement('script'); script.src = url; script.onload = resolve; script.onerror = reject;" +
        "document.body.append(script); })), Promise.resolve());" +
        "</scr" + 'ipt><script src="' + source + '" onload="started()"></scr' + "ipt></body>");
      this.inner.document.close();
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {
      removeEventListener("message", this.receive);
      this.inner.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
