package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// checkParameters refuses parameters that the route does not take: a credential in an address ends up in the logs of whatever the
// request passes. Neither their values nor their names are repeated, since either may be one.
func checkParameters(r *http.Request, rt route) error {
	given, err := query(r)
	if err != nil {
		return err
	}
	for name := range given {
		if slices.Contains(rt.takes, name) {
			continue
		}
		unknown := fault.New(fault.Invalid, "query_parameter_unknown", "the address has a parameter that is not described")
		if len(rt.takes) == 0 {
			return unknown.Do("leave out everything from ? on")
		}
		return unknown.Do("use no others than: %s", strings.Join(rt.takes, ", "))
	}
	return nil
}
