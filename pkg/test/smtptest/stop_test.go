package smtptest

import "testing"

// A test that ends before the server has begun does not wait for it for ever.
func TestItStopsBeforeItServes(t *testing.T) {
	for range 1000 {
		t.Run("", func(t *testing.T) { New(t) })
	}
}
