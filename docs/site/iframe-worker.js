// Search in pages that are opened from the disk, where browsers start no workers: the worker's script
// runs in a hidden frame instead. Material asks for a script of this name.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<body>"
      this.inside = new Promise((ready) => {
        frame.onload = () => {
          const inside = frame.contentWindow
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = () => ready(inside)
          inside.document.body.append(script)
        }
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
