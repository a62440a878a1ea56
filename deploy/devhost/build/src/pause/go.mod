module github.com/kubebyon/kubebyon/deploy/devhost/build/src/pause

go 1.26.0
