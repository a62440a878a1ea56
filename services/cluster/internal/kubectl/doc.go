// Package kubectl runs kubectl for people: each command in a child process that holds no credential, whose one way out is a proxy
// which only reads. It must never run what the filter has not allowed, give a child or an answer a credential, or let a command
// reach another API than the tenant's.
package kubectl
