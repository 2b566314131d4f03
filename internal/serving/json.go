package serving

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Message is what is answered.
type Message = proto.Message

var (
	unmarshal = protojson.UnmarshalOptions{DiscardUnknown: false}
	// sparse leaves zero values out, as suits endpoints; full shows them.
	sparse = protojson.MarshalOptions{UseProtoNames: true}
	full   = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}
)

// StatusError is an error with an HTTP status of its own.
type StatusError struct {
	Status int
	Err    error
}

func (e *StatusError) Error() string { return e.Err.Error() }
func (e *StatusError) Unwrap() error { return e.Err }

var httpStatus = map[registry.Kind]int{
	registry.Internal:    http.StatusInternalServerError,
	registry.Invalid:     http.StatusBadRequest,
	registry.Conflict:    http.StatusConflict,
	registry.NotFound:    http.StatusNotFound,
	registry.Unavailable: http.StatusServiceUnavailable,
	registry.SlowReader:  http.StatusTooManyRequests,
	registry.Denied:      http.StatusForbidden,
	registry.Limited:     http.StatusTooManyRequests,
}

// StatusOf returns the HTTP status that tells of err.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Status
	}
	return httpStatus[registry.KindOf(err)]
}

// Answering makes a handler of a function that returns its answer, for requests
// with no query parameters but those.
func Answering(f func(http.ResponseWriter, *http.Request) (Message, error), parameters ...string) http.HandlerFunc {
	return func(out http.ResponseWriter, r *http.Request) {
		if err := CheckQuery(r, parameters...); err != nil {
			Fail(out, err)
			return
		}
		m, err := f(out, r)
		if err != nil {
			Fail(out, err)
			return
		}
		body, err := encode(m)
		if err != nil {
			Fail(out, err)
			return
		}
		writeJSON(out, http.StatusOK, body)
	}
}

// CheckQuery refuses a query that asks for more than it would get.
func CheckQuery(r *http.Request, parameters ...string) error {
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return registry.Invalidf("query", "cannot be read: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		switch {
		case slices.Contains(parameters, name):
		case len(parameters) == 0:
			return registry.Invalidf(name, "is no parameter of this path, which takes none")
		default:
			return registry.Invalidf(name, "is no parameter of this path: use %s", strings.Join(parameters, " or "))
		}
	}
	return nil
}

// Reply turns an answer of any type into a Message; a nil pointer must not become
// an interface.
func Reply[M Message](m M, err error) (Message, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// encode returns m as JSON without insignificant space. Lists that are empty are
// there; zero values of endpoints are not.
func encode(m Message) ([]byte, error) {
	options := full
	switch m := m.(type) {
	case *registryv1.ListResponse:
		if len(m.GetEndpoints()) > 0 {
			options = sparse
		}
	case *registryv1.WatchResponse:
		options = sparse
	}
	spaced, err := options.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Compact(&out, spaced)
	return out.Bytes(), err
}

// failure is the JSON of an error.
type failure struct {
	Error failureBody `json:"error"`
}

type failureBody struct {
	Kind    string `json:"kind"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

func failureOf(err error) failure {
	f := failure{failureBody{Kind: registry.KindOf(err).String(), Message: err.Error()}}
	if e, ok := errors.AsType[*registry.Error](err); ok {
		f.Error.Field = e.Field
	}
	return f
}

// Fail answers with err, and the status that tells of it.
func Fail(out http.ResponseWriter, err error) {
	status := StatusOf(err)
	body, marshalErr := json.Marshal(failureOf(err))
	if marshalErr != nil {
		http.Error(out, marshalErr.Error(), http.StatusInternalServerError)
		return
	}
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		out.Header().Set("Retry-After", "1")
	}
	writeJSON(out, status, body)
}

// writeJSON sends body. That the client may be gone is no concern of a handler.
func writeJSON(out http.ResponseWriter, status int, body []byte) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(status)
	out.Write(append(body, '\n'))
}

// Plain answers with text.
func Plain(out http.ResponseWriter, status int, text string) {
	out.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out.WriteHeader(status)
	out.Write([]byte(text))
}

// plainText is what protojson says, without the module's prefix and its
// deliberately varying space.
func plainText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimSpace(strings.TrimPrefix(text, "proto:"))
}
