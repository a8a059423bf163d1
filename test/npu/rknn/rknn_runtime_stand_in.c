// A stand-in for Rockchip's NPU runtime (librknnrt.so), so that RKNNLite runs its own code where
// there is no NPU. It computes nothing: outputs are replayed from a file. Declared here is only
// what RKNNLite hands over, with the layouts of the runtime's public C interface.
//
// Environment, read at each call:
//   STAND_IN_SHAPE    "height,width,n_tokens,n_embd" of the model
//   STAND_IN_OUTPUTS  file of float32 embeddings, one frame after another
//   STAND_IN_FAIL     "call=code", the call one of init, mask, version, inputs, run, outputs
//
// The frame replayed is the one whose number is the value of the input's first byte. As in the real
// library, a run that fails leaves the outputs of the one before.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUERY_IN_OUT_NUM = 0, QUERY_INPUT_ATTR = 1, QUERY_OUTPUT_ATTR = 2, QUERY_SDK_VERSION = 5 };
enum { TYPE_FLOAT16 = 1, TYPE_UINT8 = 3 };
enum { FORMAT_NCHW = 0, FORMAT_NHWC = 1, FORMAT_UNDEFINED = 3 };
enum { FAIL = -1, PARAM_INVALID = -5, MODEL_INVALID = -6, INPUT_INVALID = -8 };

struct tensor_attribute {
    uint32_t index, n_dims, dims[16];
    char name[256];
    uint32_t n_elems, size;
    int32_t format, type, quantisation;
    int8_t fixed_point;
    int32_t zero_point;
    float scale;
    uint32_t w_stride, size_with_stride;
    uint8_t pass_through;
    uint32_t h_stride;
};
struct input {
    uint32_t index;
    void *buffer;
    uint32_t size;
    uint8_t pass_through;
    int32_t type, format;
};
struct output {
    uint8_t want_float, is_preallocated;
    uint32_t index;
    void *buffer;
    uint32_t size;
};
_Static_assert(sizeof(struct tensor_attribute) == 376, "tensor attribute");
_Static_assert(sizeof(struct input) == 32, "input");
_Static_assert(sizeof(struct output) == 24, "output");

static int height = 224, width = 224, n_tokens = 49, n_embd = 256;
static int given_frame = 0, computed_frame = -1;

static int failure_of(const char *call) {
    const char *told = getenv("STAND_IN_FAIL");
    size_t n = strlen(call);
    if (told == NULL || strncmp(told, call, n) != 0 || told[n] != '=') return 0;
    return atoi(told + n + 1);
}

int rknn_init(uint64_t *context, void *model, uint32_t size, uint32_t flags, void *extend) {
    int code = failure_of("init");
    const char *shape = getenv("STAND_IN_SHAPE");
    if (code) return code;
    if (size < 4 || memcmp(model, "RKNN", 4) != 0) return MODEL_INVALID;
    if (shape) sscanf(shape, "%d,%d,%d,%d", &height, &width, &n_tokens, &n_embd);
    computed_frame = -1;
    *context = 1;
    return 0;
}

int rknn_destroy(uint64_t context) { return 0; }

static void describe(struct tensor_attribute *a, int is_input) {
    uint32_t index = a->index;
    memset(a, 0, sizeof *a);
    a->index = index;
    a->dims[0] = 1;
    if (is_input) {
        a->n_dims = 4;
        a->dims[1] = height;
        a->dims[2] = width;
        a->dims[3] = 3;
        a->n_elems = 3 * height * width;
        a->format = FORMAT_NHWC;
        strcpy(a->name, "image");
    } else {
        a->n_dims = 3;
        a->dims[1] = n_tokens;
        a->dims[2] = n_embd;
        a->n_elems = n_tokens * n_embd;
        a->format = FORMAT_UNDEFINED;
        strcpy(a->name, "embeds");
    }
    a->type = TYPE_FLOAT16;
    a->size = 2 * a->n_elems;
    a->scale = 1;
}

int rknn_query(uint64_t context, int what, void *info, uint32_t size) {
    switch (what) {
    case QUERY_IN_OUT_NUM:
        ((uint32_t *)info)[0] = ((uint32_t *)info)[1] = 1;
        return 0;
    case QUERY_INPUT_ATTR:
        describe(info, 1);
        return 0;
    case QUERY_OUTPUT_ATTR:
        describe(info, 0);
        return 0;
    case QUERY_SDK_VERSION: {
        int code = failure_of("version");
        if (code) return code;
        memset(info, 0, size);
        strcpy(info, "2.5.0 (stand-in@2026-01-01T00:00:00)");
        strcpy((char *)info + 256, "0.9.8");
        return 0;
    }
    default:
        return PARAM_INVALID;
    }
}

int rknn_set_core_mask(uint64_t context, int mask) { return failure_of("mask"); }

int rknn_inputs_set(uint64_t context, uint32_t n, struct input *in) {
    int code = failure_of("inputs");
    if (code) return code;
    if (n != 1 || in->type != TYPE_UINT8 || in->format != FORMAT_NHWC || in->pass_through != 0 ||
        in->size != 3u * height * width)
        return INPUT_INVALID;
    given_frame = ((uint8_t *)in->buffer)[0];
    return 0;
}

int rknn_run(uint64_t context, void *extend) {
    int code = failure_of("run");
    if (code == 0) computed_frame = given_frame;
    return code;
}

int rknn_wait(uint64_t context, void *extend) { return 0; }

int rknn_outputs_get(uint64_t context, uint32_t n, struct output *out, void *extend) {
    int code = failure_of("outputs");
    size_t bytes = sizeof(float) * n_tokens * n_embd;
    const char *path = getenv("STAND_IN_OUTPUTS");
    FILE *file;
    if (code) return code;
    if (!out->is_preallocated) out->buffer = malloc(bytes);
    memset(out->buffer, 0, bytes);
    out->size = bytes;
    if (computed_frame < 0) return 0;
    file = path ? fopen(path, "rb") : NULL;
    if (file == NULL) return FAIL;
    fseek(file, (long)(computed_frame * bytes), SEEK_SET);
    code = fread(out->buffer, 1, bytes, file) == bytes ? 0 : FAIL;
    fclose(file);
    return code;
}

int rknn_outputs_release(uint64_t context, uint32_t n, struct output *out) {
    if (!out->is_preallocated) free(out->buffer);
    return 0;
}

int rknn_set_input_shapes(uint64_t context, uint32_t n, struct tensor_attribute *attributes) {
    return 0;
}
