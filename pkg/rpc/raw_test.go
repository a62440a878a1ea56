package rpc

import (
	"encoding/json"
	"testing"
)

func TestAnswerAsItCame(t *testing.T) {
	var raw json.RawMessage
	if err := decode([]byte(`{"a":[1, 2]}`), &raw); err != nil || string(raw) != `{"a":[1, 2]}` {
		t.Errorf("%s, %v", raw, err)
	}
	for _, s := range []string{``, `{`, `[]`, `{"a":`, `null`} {
		if err := decode([]byte(s), &raw); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}
