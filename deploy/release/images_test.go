package main

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/holdfast-xds/holdfast/test/dockerfile"
)

// root is the repository.
const root = "../.."

func recipe(t *testing.T) dockerfile.Dockerfile {
	t.Helper()
	all, err := dockerfile.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// made makes an image of a program that is no program.
func made(t *testing.T, i image) (imaging, map[string]entry) {
	t.Helper()
	in := imaging{source: root, work: t.TempDir(), version: "v0.1.0", commit: strings.Repeat("a", 40), at: someTime, notices: []byte("n")}
	all := make(map[string]entry)
	for _, e := range system([]byte("l"), in.notices) {
		all[e.name] = e
	}
	for _, dir := range i.dirs {
		all[dir] = entry{name: dir, dir: true, uid: imageUser, gid: imageUser}
	}
	return in, all
}

func TestImagesAreThoseOfTheDockerfile(t *testing.T) {
	all := recipe(t)
	stages := []string{}
	for _, i := range all {
		if i.Op == "FROM" && i.Stage != "build" {
			stages = append(stages, i.Stage)
		}
	}
	for _, i := range images {
		t.Run(i.name, func(t *testing.T) {
			at := slices.Index(stages, i.stage)
			if at < 0 {
				t.Fatalf("the Dockerfile has no stage %s", i.stage)
			}
			stages = slices.Delete(stages, at, at+1)
			in, files := made(t, i)
			config := in.config(i)
			ports := []string{}
			for port := range config.ExposedPorts {
				ports = append(ports, strings.TrimSuffix(port, "/tcp"))
			}
			slices.Sort(ports)
			list := func(words []string) string {
				text, err := json.Marshal(words)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			for op, got := range map[string]string{"USER": config.User, "ENTRYPOINT": list(config.Entrypoint), "CMD": list(config.Cmd), "EXPOSE": strings.Join(ports, " ")} {
				if want := all.Of(i.stage, op); !slices.Equal(want, []string{got}) {
					t.Errorf("%s is %q, and %q in the Dockerfile", op, got, want)
				}
			}
			labels := strings.Join(all.Of(i.stage, "LABEL"), " ")
			found := regexp.MustCompile(`(org\.opencontainers\.image\.\w+)="([^"]*)"`).FindAllStringSubmatch(labels, -1)
			if len(found) != 6 || len(config.Labels) != 7 || config.Labels["org.opencontainers.image.created"] != "2026-11-01T12:00:00Z" {
				t.Errorf("labels: %v, and in the Dockerfile %s", config.Labels, labels)
			}
			for _, label := range found {
				want := strings.NewReplacer("$VERSION", in.version, "$REVISION", in.commit).Replace(label[2])
				if config.Labels[label[1]] != want {
					t.Errorf("label %s is %q, and %q in the Dockerfile", label[1], config.Labels[label[1]], want)
				}
			}
			files[config.Entrypoint[0][1:]] = entry{}
			for _, instruction := range all {
				if instruction.Stage != i.stage || instruction.Op != "COPY" {
					continue
				}
				to := path.Clean(strings.Fields(instruction.Args)[1])[1:]
				if to == "usr/share/doc/holdfast" {
					to += "/LICENSE"
				}
				if to == "etc" {
					to += "/passwd"
				}
				e, ok := files[to]
				if !ok {
					t.Errorf("the Dockerfile copies %s, which is missing", to)
				}
				owned := slices.Contains(instruction.Flags, fmt.Sprintf("--chown=%d:%d", imageUser, imageUser))
				if owned != (e.uid == imageUser && e.gid == imageUser) {
					t.Errorf("%s belongs to %d:%d, in the Dockerfile %q", to, e.uid, e.gid, instruction.Flags)
				}
			}
		})
	}
	if len(stages) > 0 {
		t.Errorf("the release has no image of the stages %q", stages)
	}
	if got := all.Arg("", "ENVOY_IMAGE"); !strings.HasSuffix(got, "-v"+envoyVersion) {
		t.Errorf("Envoy is %s, in the Dockerfile %s", envoyVersion, got)
	}
}

func TestUsersOfTheImagesAreThoseOfTheDockerfile(t *testing.T) {
	runs := strings.Join(recipe(t).Of("build", "RUN"), "\n")
	for _, e := range system(nil, nil) {
		if e.name != "etc/passwd" && e.name != "etc/group" {
			continue
		}
		if text := strings.ReplaceAll(string(e.data), "\n", `\n`); !strings.Contains(runs, "'"+text+"'") {
			t.Errorf("%s is %s, which the Dockerfile does not write", e.name, text)
		}
	}
	if n := strings.Count(string(authorities()), "BEGIN CERTIFICATE"); n < 80 {
		t.Errorf("only %d certificates", n)
	}
}

func TestAnImageIsValidAndTheSameEachTime(t *testing.T) {
	for _, i := range images {
		in, _ := made(t, i)
		in.envoy = &envoyParts{version: "1", program: []entry{{name: "usr/local/bin/envoy"}}}
		p := program{command: i.command, platform: platform{"linux", "arm64"}, data: []byte("program")}
		one, err := in.build(i, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(one); err != nil {
			t.Errorf("%s: %v", i.name, err)
		}
		two, err := in.build(i, p)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := one.Digest()
		if b, _ := two.Digest(); a != b {
			t.Errorf("%s: %s and %s", i.name, a, b)
		}
	}
}
