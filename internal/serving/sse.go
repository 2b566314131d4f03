package serving

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/aether-federation/aether/internal/view"
)

const (
	// sseBeat is how often an idle event stream shows that it lives.
	sseBeat = 15 * time.Second
	// sseTimeout is how long a client may take to accept what was written.
	sseTimeout = 10 * time.Second
)

// webWatch serves changes as server-sent events. Each event's data is one
// WatchResponse; an event of type "error" is the last.
func (r *Reads) webWatch(out http.ResponseWriter, req *http.Request) {
	if err := CheckQuery(req, "service"); err != nil {
		Fail(out, err)
		return
	}
	q, err := r.query(req.URL.Query()["service"])
	if err != nil {
		Fail(out, Renamed(err, "service"))
		return
	}
	done, err := r.Open(req.Context())
	if err != nil {
		Fail(out, err)
		return
	}
	defer done()
	sub := r.View.Subscribe(q, nil)
	defer sub.Close()
	r.Mark(out.Header())
	out.Header().Set("Content-Type", "text/event-stream")
	out.Header().Set("Cache-Control", "no-store")
	events := &eventWriter{out: out, control: http.NewResponseController(out)}
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	stop := context.AfterFunc(r.stopped, func() { cancel(r.Stopping) })
	defer stop()
	if err := events.follow(ctx, sub); err != nil && req.Context().Err() == nil {
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
func (w *eventWriter) follow(ctx context.Context, sub *view.Subscription) error {
	for {
		d, err := w.next(ctx, sub)
		if err != nil {
			return err
		}
		for m := range d.Messages() {
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
func (w *eventWriter) next(ctx context.Context, sub *view.Subscription) (view.Delivery, error) {
	for {
		beat, cancel := context.WithTimeout(ctx, sseBeat)
		d, err := sub.Next(beat)
		idle := err != nil && beat.Err() != nil && ctx.Err() == nil
		cancel()
		if !idle {
			return d, err
		}
		if err := w.write([]byte(": idle\n\n")); err != nil {
			return view.Delivery{}, err
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
