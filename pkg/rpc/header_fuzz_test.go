package rpc

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// FuzzHeader: whatever the headers say, a principal that comes out is plausible, the time is within the method's, and
// nothing panics.
func FuzzHeader(f *testing.F) {
	f.Add(`{"user_id":"usr_1","role":"admin"}`, "1500", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")
	f.Add(`{"user_id":"usr_1","role":"admin","role":"user"}`, "0", "", "")
	f.Add(`{"user_id":"usr_1","role":"user","read_only":true,"clusters":["cl_aaaaaaaaaaaaaaaaaaaa"]}`, "1", "", "")
	f.Add(`{"USER_ID":"usr_1","role":"user"} `, "18446744073709551616", "junk", "\r\n")
	f.Fuzz(func(t *testing.T, principal, timeout, traceparent, tracestate string) {
		h := nats.Header{headerPrincipal: {principal}, headerTimeout: {timeout}, "traceparent": {traceparent}, "tracestate": {tracestate}}
		ctx, left, bad := fromHeader(t.Context(), h, time.Minute)
		if left <= 0 || left > time.Minute {
			t.Fatalf("%v of a minute", left)
		}
		p, ok := PrincipalFrom(ctx)
		if bad != nil {
			if bad.Kind != fault.Invalid || strings.Contains(bad.Message, "\n") {
				t.Fatalf("%v", bad)
			}
			return
		}
		if !ok || !userID.MatchString(p.UserID) || p.Role != contract.RoleAdmin && p.Role != contract.RoleUser || len(principal) > maxPrincipal {
			t.Fatalf("%q became %+v", principal, p)
		}
		s, err := encodePrincipal(p)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodePrincipal(s); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
		if strings.ContainsAny(s, "\r\n") {
			t.Fatalf("%q breaks its header", s)
		}
	})
}

// FuzzReply: an answer is either accepted whole or is a fault with a known kind and a code, and a fault survives the way.
func FuzzReply(f *testing.F) {
	f.Add("error", "conflict", "name_taken", []byte(`{"message":"m","field":"f"}`))
	f.Add("ok", "", "", []byte(`{}`))
	f.Add("error", "internal", "x y", []byte(`{`))
	f.Fuzz(func(t *testing.T, status, kind, code string, body []byte) {
		got := fromReply(&nats.Msg{Header: nats.Header{headerStatus: {status}, headerErrorKind: {kind}, headerErrorCode: {code}}, Data: body})
		if got == nil {
			if status != statusOK || kind != "" {
				t.Fatalf("%q %q decoded as success", status, kind)
			}
			return
		}
		if !known(got.Kind) || !errorCode.MatchString(got.Code) || got.Message == "" || len(got.Message) > maxErrorText+3 {
			t.Fatalf("%+v", got)
		}
		back := fromReply(errorReply(got))
		if back.Kind != got.Kind || back.Code != got.Code {
			t.Fatalf("%+v became %+v", got, back)
		}
	})
}

func TestClip(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("é", maxErrorText), strings.Repeat("a", maxErrorText-1) + "€€€€", strings.Repeat("\xff", 2*maxErrorText)} {
		got := clip(s)
		if len(got) > maxErrorText+len("…") || (utf8.ValidString(s) && !utf8.ValidString(got)) {
			t.Errorf("%d bytes became %d: %q", len(s), len(got), got[max(0, len(got)-8):])
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	}
}
