package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// OverlayKind is how an overlay changes a bootstrap.
type OverlayKind string

// The kinds. Patches see the bootstrap as Encode writes it in JSON: fields under the names of Envoy's documentation, with
// underscores, and none that has its default.
const (
	// Merge is a part of a bootstrap, merged as protobuf merges: what is there is set or replaced, messages are merged,
	// lists are appended to, an Any or a key of a map is replaced as a whole. A field cannot be set back to its default.
	Merge OverlayKind = "merge"
	// MergePatch is RFC 7386: objects are merged, null removes a field, everything else, lists too, is replaced.
	MergePatch OverlayKind = "JSON merge patch"
	// Patch is RFC 6902: a list of operations.
	Patch OverlayKind = "JSON patch"
)

// Overlay changes a bootstrap.
type Overlay struct {
	// Name is where it comes from, for errors.
	Name string
	Kind OverlayKind
	// Format and Data are its text.
	Format Format
	Data   []byte
}

// KindOf returns the kind of an overlay by the name of its file: *.patch.yaml, *.merge.yaml, or another .yaml, and so for
// .yml and .json.
func KindOf(path string) OverlayKind {
	name := strings.TrimSuffix(path, filepath.Ext(path))
	switch filepath.Ext(name) {
	case ".merge":
		return MergePatch
	case ".patch":
		return Patch
	default:
		return Merge
	}
}

// ReadOverlay reads the overlay at path.
func ReadOverlay(path string) (Overlay, error) {
	data, err := userfile.Read(path)
	if err != nil {
		return Overlay{}, fmt.Errorf("bootstrap: overlay: %w", err)
	}
	format, err := FormatOf(path)
	if err != nil {
		return Overlay{}, err
	}
	return Overlay{Name: path, Kind: KindOf(path), Format: format, Data: data}, nil
}

// Apply returns b changed by the overlays in their order, and b itself as it was. An error names the overlay and the
// field.
func Apply(b *bootstrapv3.Bootstrap, overlays ...Overlay) (*bootstrapv3.Bootstrap, error) {
	b = proto.CloneOf(b)
	for _, o := range overlays {
		changed, err := o.apply(b)
		if err == nil {
			err = Validate(changed)
		}
		if err != nil {
			return nil, fmt.Errorf("bootstrap: overlay %s (%s): %w", o.Name, o.Kind, unprefixed(err))
		}
		b = changed
	}
	return b, nil
}

// unprefixed takes the name of the package off an error that gets it again.
func unprefixed(err error) error {
	if text, found := strings.CutPrefix(err.Error(), "bootstrap: "); found {
		return errors.New(text)
	}
	return err
}

// apply may change b.
func (o Overlay) apply(b *bootstrapv3.Bootstrap) (*bootstrapv3.Bootstrap, error) {
	document, err := parseDocument(o.Data, o.Format)
	if err != nil {
		return nil, err
	}
	if o.Kind == Merge {
		part, err := decodeBootstrap(document)
		if err != nil {
			return nil, err
		}
		proto.Merge(b, part)
		return b, nil
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: envoytypes.Resolver}.Marshal(b)
	if err != nil {
		return nil, err
	}
	switch o.Kind {
	case MergePatch:
		if !document.IsMapping() {
			return nil, errors.New("is no mapping of fields of a bootstrap")
		}
		text, err = jsonpatch.MergePatch(text, document.JSON())
	case Patch:
		text, err = patch(text, document.JSON())
	default:
		err = fmt.Errorf("%q is no kind of overlay", o.Kind)
	}
	if err != nil {
		return nil, err
	}
	result, err := parseDocument(text, JSON)
	if err != nil {
		return nil, err
	}
	changed, err := decodeBootstrap(result)
	if at := (*yamlproto.Error)(nil); errors.As(err, &at) {
		at.Line = 0 // of the result, which nobody sees
	}
	return changed, err
}

// patch applies operations one after the other, so that an error can name the one. It does not quote it: what it adds may
// be secret.
func patch(document, text []byte) ([]byte, error) {
	var operations []json.RawMessage
	if err := json.Unmarshal(text, &operations); err != nil {
		return nil, errors.New(`is no list of operations, such as {"op": "remove", "path": "/admin"}`)
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false // which RFC 6902 does not have
	for i, operation := range operations {
		var called struct{ Op, Path string }
		// Whatever is wrong, DecodePatch finds it too.
		_ = json.Unmarshal(operation, &called)
		one, err := jsonpatch.DecodePatch(slices.Concat([]byte("["), operation, []byte("]")))
		if err != nil {
			err = errors.New("is no operation: it wants op (add, remove, replace, move, copy or test), path, and value or from")
		} else {
			document, err = one.ApplyWithOptions(document, options)
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d (%s %s): %w", i+1, called.Op, called.Path, err)
		}
	}
	return document, nil
}
