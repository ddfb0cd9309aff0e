package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// OverlayKind is how an overlay modifies a bootstrap.
type OverlayKind string

// The kinds. Patches apply to the JSON that Encode writes: field names as in Envoy's documentation, with
// underscores, and no fields with default values.
const (
	// Merge is a partial bootstrap that is merged as in protobuf: scalar fields are set, messages are merged, lists are
	// appended, an Any or a map entry is replaced as a whole. It cannot reset a field to its default.
	Merge OverlayKind = "merge"
	// MergePatch is an RFC 7386 patch: objects are merged, null removes a field, everything else, including lists, is
	// replaced.
	MergePatch OverlayKind = "JSON merge patch"
	// Patch is an RFC 6902 patch: a list of operations.
	Patch OverlayKind = "JSON patch"
)

// Overlay is a modification of a bootstrap.
type Overlay struct {
	// Name is the origin of the overlay, for errors.
	Name string
	Kind OverlayKind
	// Format and Data are its text.
	Format Format
	Data   []byte
}

// KindOf returns the kind of an overlay by its file name: *.patch.yaml, *.merge.yaml, or any other .yaml; likewise for .yml
// and .json.
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

// Apply returns a copy of b that the overlays have modified in order. An error names the overlay and the field.
func Apply(b *bootstrapv3.Bootstrap, overlays ...Overlay) (*bootstrapv3.Bootstrap, error) {
	b = proto.CloneOf(b)
	for _, o := range overlays {
		changed, err := o.apply(b)
		if err == nil {
			err = checkFields(changed)
		}
		if err != nil {
			return nil, fmt.Errorf("bootstrap: overlay %s (%s): %w", o.Name, o.Kind, err)
		}
		b = changed
	}
	return b, nil
}

// apply may modify b.
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
	text, err := marshalOptions.Marshal(b)
	if err != nil {
		return nil, err
	}
	switch o.Kind {
	case MergePatch:
		if !document.IsMapping() {
			return nil, errors.New("is not a mapping of bootstrap fields")
		}
		text, err = jsonpatch.MergePatch(text, document.JSON())
	case Patch:
		text, err = patch(text, document.JSON())
	default:
		err = fmt.Errorf("unknown kind of overlay %q", o.Kind)
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
		at.Line = 0 // a line of the intermediate result would mislead
	}
	return changed, err
}

// patch applies the operations one by one, so that an error can name the operation. It does not quote its value, which may
// be secret.
func patch(document, text []byte) ([]byte, error) {
	var operations []json.RawMessage
	if err := json.Unmarshal(text, &operations); err != nil {
		return nil, errors.New(`is not a list of operations, such as {"op": "remove", "path": "/admin"}`)
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false // an extension that RFC 6902 does not have
	for i, operation := range operations {
		var called struct{ Op, Path string }
		// An error is ignored, because DecodePatch returns it as well.
		_ = json.Unmarshal(operation, &called)
		one, err := jsonpatch.DecodePatch(slices.Concat([]byte("["), operation, []byte("]")))
		if err != nil {
			err = errors.New("is not a valid operation: want op (add, remove, replace, move, copy or test), path, and value or from")
		} else {
			document, err = one.ApplyWithOptions(document, options)
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d (%s %s): %w", i+1, called.Op, called.Path, err)
		}
	}
	return document, nil
}

// Complete returns template with the parts of Build(cfg) that it lacks: fields of the node, the sources of listeners and
// clusters, static clusters and listeners with other names, and every other field. It does not change what the template
// has. It returns the error of Build.
func Complete(template *bootstrapv3.Bootstrap, cfg Config) (*bootstrapv3.Bootstrap, error) {
	made, err := Build(cfg)
	if err != nil {
		return nil, err
	}
	b := proto.CloneOf(template)
	fill(b, made)
	fill(b.Node, made.Node)
	if m := b.GetNode().GetMetadata(); m != nil { // of the template, or filled in
		fields := make(map[string]*structpb.Value) // neither may have any
		maps.Copy(fields, made.GetNode().GetMetadata().GetFields())
		maps.Copy(fields, m.GetFields())
		m.Fields = fields
	}
	fill(b.DynamicResources, made.DynamicResources)
	resources := b.GetStaticResources()
	static := made.GetStaticResources()
	resources.Clusters = append(resources.Clusters, missing(resources.Clusters, static.GetClusters())...)
	resources.Listeners = append(resources.Listeners, missing(resources.Listeners, static.GetListeners())...)
	return b, nil
}

// missing returns the elements of made whose names has does not have.
func missing[T interface{ GetName() string }](has, made []T) []T {
	return slices.DeleteFunc(slices.Clone(made), func(one T) bool {
		return slices.ContainsFunc(has, func(other T) bool { return other.GetName() == one.GetName() })
	})
}

// fill sets the unset fields of m to those of from.
func fill(m, from interface{ ProtoReflect() protoreflect.Message }) {
	to := m.ProtoReflect()
	from.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		taken := to.Has(fd) || fd.ContainingOneof() != nil && to.WhichOneof(fd.ContainingOneof()) != nil
		if !taken {
			to.Set(fd, v)
		}
		return true
	})
}
