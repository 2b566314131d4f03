package registrar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// sseBeat is how often an idle event stream shows that it lives.
	sseBeat = 15 * time.Second
	// sseTimeout is how long a client may take to accept what was written.
	sseTimeout = 10 * time.Second
)

// watch serves changes as server-sent events. Each event's data is one
// WatchResponse; an event of type "error" is the last.
func (w web) watch(out http.ResponseWriter, r *http.Request) {
	if err := checkQuery(r, "service"); err != nil {
		writeFailure(out, statusOf(err), err)
		return
	}
	q, err := w.query(r.URL.Query()["service"])
	if err != nil {
		writeFailure(out, statusOf(err), renamed(err, "service"))
		return
	}
	done, err := w.guard.open(r.Context())
	if err != nil {
		writeFailure(out, statusOf(err), err)
		return
	}
	defer done()
	sub := w.view.subscribe(q, nil)
	defer sub.close()
	out.Header().Set("Content-Type", "text/event-stream")
	out.Header().Set("Cache-Control", "no-store")
	events := &eventWriter{out: out, control: http.NewResponseController(out)}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(w.stopContext, func() { cancel(errStopping) })
	defer stop()
	if err := events.follow(ctx, sub); err != nil && r.Context().Err() == nil {
		if context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		events.fail(err) // the stream ends either way
	}
}

// eventWriter writes server-sent events.
type eventWriter struct {
	out     http.ResponseWriter
	control *http.ResponseController
}

// follow writes what sub tells until ctx ends, sub is cut off or the client does
// not take it.
func (w *eventWriter) follow(ctx context.Context, sub *subscription) error {
	for {
		d, err := w.next(ctx, sub)
		if err != nil {
			return err
		}
		for m := range d.messages() {
			body, err := encode(m)
			if err != nil {
				return err
			}
			if err := w.write(fmt.Appendf(nil, "id: %s\ndata: %s\n\n", m.GetRevision(), body)); err != nil {
				return err
			}
		}
	}
}

// next waits for the next delivery and shows a sign of life meanwhile.
func (w *eventWriter) next(ctx context.Context, sub *subscription) (delivery, error) {
	for {
		beat, cancel := context.WithTimeout(ctx, sseBeat)
		d, err := sub.next(beat)
		idle := err != nil && beat.Err() != nil && ctx.Err() == nil
		cancel()
		if !idle {
			return d, err
		}
		if err := w.write([]byte(": idle\n\n")); err != nil {
			return delivery{}, err
		}
	}
}

func (w *eventWriter) fail(err error) error {
	body, marshalErr := json.Marshal(failureOf(err))
	if marshalErr != nil {
		return marshalErr
	}
	return w.write(fmt.Appendf(nil, "event: error\ndata: %s\n\n", body))
}

func (w *eventWriter) write(event []byte) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(sseTimeout)); err != nil {
		return fmt.Errorf("set write deadline: %w", err)
	}
	if _, err := w.out.Write(bytes.TrimPrefix(event, []byte("id: \n"))); err != nil {
		return err
	}
	return w.control.Flush()
}
