//go:build graph

package pkg

// Held in go.mod by this import alone: go-kit asks for a genproto from before googleapis/rpc was its own module, and then
// gRPC's imports are ambiguous in the workspace.
import _ "google.golang.org/genproto/googleapis/type/date"
