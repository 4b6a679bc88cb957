// The events of one view. An EventSource can't send the token, so they are read here.

export class Stream {
  // `heard(name, data)` is called with each event, and `ended(status)` once: 0 if there was no reply.
  constructor(address, headers, heard, ended) {
    this.ending = new AbortController();
    this.heard = heard;
    this.read(address, headers).catch(() => 0).then((status) => this.ending.signal.aborted || ended(status));
  }

  close() {
    this.ending.abort();
  }

  async read(address, headers) {
    const reply = await fetch(address, { headers, signal: this.ending.signal });
    if (!reply.ok) return reply.status;
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return reply.status;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      if (this.ending.signal.aborted) return 0;
      blocks.forEach((block) => this.event(block));
    }
  }

  event(block) {
    const found = /^event: (\w+)\ndata: (.*)$/.exec(block);
    if (found) this.heard(found[1], JSON.parse(found[2]));
  }
}
