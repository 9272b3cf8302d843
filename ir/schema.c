#include "ir/schema.h"

#include <string.h>

#include "ir/arena.h"
#include "ir/spec.h"

/* The elements of the dialect but for ops and the containers of ops, one row each:
 * name, attributes in spec notation, content. A type of {a|b} also allows a name of a string parameter. */
static const struct {
    const char *name, *attrs, *content;
} elements[] = {
    {"include", "href:string*", ""},
    {"dim", "name:name*, value:string*, role:{batch|sequence|expert|spatial}", ""},
    {"param", "name:name*, type:{int|float|bool|string}*, value:string*", ""},
    {"require", "test:string*, message:string", ""},
    {"params", "", "(dim|param|preset|require)*"},
    {"arg", "name:name*, type:{int|float|bool|string}*, default:string", ""},
    {"input",
     "name:name*, type:{i32|f32}*, shape:string*, limit:string, test:string, "
     "role:{tokens|next_tokens|masked_tokens|masked_labels|zeros|ones}",
     ""},
    {"inputs", "", "input+"},
    {"batch", "micro:string*", ""},
    {"precision", "compute:{f32|bf16|f16}, params:{f32}, reduce:{f32}, loss_scale:float, loss_scale_every:int", ""},
    {"group", "match:string*, weight_decay:string*", ""},
    {"optimizer",
     "type:{adamw|sgd}*, lr:string*, beta1:string, beta2:string, epsilon:string, momentum:string, "
     "nesterov:string, weight_decay:string, weight_decay_1d:string, clip_norm:string",
     "group*"},
    {"schedule", "type:{constant|linear|cosine}*, warmup_steps:string, total_steps:string, final_lr:string", ""},
    {"checkpoint", "every:string, keep:string", ""},
    {"training", "loss:string*", "batch?,precision?,optimizer,schedule?,checkpoint?"},
    {"dataset",
     "split:{train|val}, format:{text|tokens|tokens-u16|npy|synthetic}*, path:string, seed:string, "
     "mask_share:string, mask_id:string",
     ""},
    {"data", "", "dataset*"},
    {"strip", "prefix:string*", ""},
    {"ignore", "match:string*", ""},
    {"weights", "format:{safetensors}, path:string, optional:string", "strip*,ignore*"},
    {"shard", "match:string*, dim:string*, axis:string", ""},
    {"planning", "", "shard*"},
    {"if", "test:string*", "body*"},
    {"repeat", "name:string, count:string*, start:string, index:name, in:string, test:string", "body*"},
    {"graph", "", "body+"},
    {"block", "name:string*", "arg*,body*"},
    {"model", "name:string*, version:{1}*",
     "include*,params,block*,inputs,graph,training,data?,weights?,planning?"},
    {"library", "name:string, version:{1}", "include*,block*"},
};

static void escaped(FILE *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", out);
        else if (*s == '&')
            fputs("&amp;", out);
        else if (*s == '"')
            fputs("&quot;", out);
        else
            fputc(*s, out);
    }
}

/* Words that are read from a fixed list can't be a parameter's name. */
static int is_closed(const struct mpp_spec *e)
{
    return strcmp(e->name, "version") == 0 || (strcmp(e->name, "type") == 0 && strcmp(e->words[0], "int") == 0);
}

static void print_attr(FILE *out, const struct mpp_spec *e)
{
    const char *indent = e->required ? "        " : "          ";
    if (!e->required)
        fputs("        <optional>\n", out);
    fprintf(out, "%s<attribute name=\"%s\">", indent, e->name);
    if (e->n_words > 0) {
        fputs("<choice>", out);
        for (int i = 0; i < e->n_words; i++) {
            fputs("<value>", out);
            escaped(out, e->words[i]);
            fputs("</value>", out);
        }
        if (!is_closed(e))
            fputs("<ref name=\"parameter\"/>", out);
        fputs("</choice>", out);
    } else if (strcmp(e->type, "name") == 0) {
        fputs("<ref name=\"identifier\"/>", out);
    } else {
        fputs("<text/>", out);
    }
    fputs("</attribute>\n", out);
    if (!e->required)
        fputs("        </optional>\n", out);
}

static void print_attrs(FILE *out, struct mpp_arena *arena, const char *spec)
{
    struct mpp_spec *entry;
    int n = mpp_spec_parse(arena, spec, &entry);
    for (int i = 0; i < n; i++)
        print_attr(out, &entry[i]);
}

/* One particle of a content model: "dim", "block*", "data?". */
static void print_particle(FILE *out, const char *s, size_t len)
{
    char mark = s[len - 1];
    const char *wrap = mark == '*' ? "zeroOrMore" : mark == '+' ? "oneOrMore" : mark == '?' ? "optional" : NULL;
    if (wrap)
        fprintf(out, "        <%s><ref name=\"%.*s\"/></%s>\n", wrap, (int)len - 1, s, wrap);
    else
        fprintf(out, "        <ref name=\"%.*s\"/>\n", (int)len, s);
}

/* A content model: particles in order, or "(a|b)*". */
static void print_content(FILE *out, const char *content)
{
    int choice = content[0] == '(';
    const char *end = choice ? strchr(content, ')') : content + strlen(content);
    if (choice)
        fputs("        <zeroOrMore><choice>\n", out);
    for (const char *s = content + choice; s < end;) {
        size_t len = strcspn(s, ",|)");
        print_particle(out, s, len);
        s += len + (s + len < end);
    }
    if (choice)
        fputs("        </choice></zeroOrMore>\n", out);
    else if (!*content)
        fputs("        <empty/>\n", out);
}

static void print_element(FILE *out, struct mpp_arena *arena, const char *name, const char *attrs, const char *content)
{
    fprintf(out, "  <define name=\"%s\">\n    <element name=\"%s\">\n", name, name);
    print_attrs(out, arena, attrs);
    print_content(out, content);
    fputs("    </element>\n  </define>\n", out);
}

/* Elements with attributes of the user's choice: a preset sets parameters, a call passes arguments. */
static void print_open_element(FILE *out, struct mpp_arena *arena, const char *name, const char *attrs,
                               const char *except)
{
    struct mpp_spec *entry;
    int n = mpp_spec_parse(arena, except, &entry);
    fprintf(out, "  <define name=\"%s\">\n    <element name=\"%s\">\n", name, name);
    print_attrs(out, arena, attrs);
    fputs("        <zeroOrMore><attribute><anyName><except>", out);
    for (int i = 0; i < n; i++)
        fprintf(out, "<name>%s</name>", entry[i].name);
    fputs("</except></anyName><text/></attribute></zeroOrMore>\n    </element>\n  </define>\n", out);
}

static void print_op(FILE *out, struct mpp_arena *arena, const struct mpp_schema_op *op)
{
    fprintf(out, "  <define name=\"op.%s\">\n    <element name=\"%s\">\n        <ref name=\"wiring\"/>\n", op->name,
            op->name);
    print_attrs(out, arena, op->attrs);
    fputs("    </element>\n  </define>\n", out);
}

static void print_shared(FILE *out, struct mpp_arena *arena, const struct mpp_schema_op *ops, int n)
{
    fputs("  <define name=\"parameter\">\n    <ref name=\"identifier\"/>\n  </define>\n"
          "  <define name=\"identifier\">\n    <data type=\"token\"><param name=\"pattern\">"
          "[A-Za-z_][A-Za-z0-9_]*</param></data>\n  </define>\n"
          "  <define name=\"wiring\">\n",
          out);
    print_attrs(out, arena, "name:string, in:string, out:string, test:string");
    fputs("  </define>\n  <define name=\"body\">\n    <choice>\n"
          "      <ref name=\"call\"/>\n      <ref name=\"repeat\"/>\n      <ref name=\"if\"/>\n",
          out);
    for (int i = 0; i < n; i++)
        fprintf(out, "      <ref name=\"op.%s\"/>\n", ops[i].name);
    fputs("    </choice>\n  </define>\n", out);
}

void mpp_schema_print(struct mpp_arena *arena, FILE *out, const struct mpp_schema_op *ops, int n)
{
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<!-- RELAX NG schema of mpplan's model file, printed by mpplan itself -->\n"
          "<grammar xmlns=\"http://relaxng.org/ns/structure/1.0\"\n"
          "         datatypeLibrary=\"http://www.w3.org/2001/XMLSchema-datatypes\">\n"
          "  <start>\n    <choice><ref name=\"model\"/><ref name=\"library\"/></choice>\n  </start>\n",
          out);
    print_shared(out, arena, ops, n);
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        print_element(out, arena, elements[i].name, elements[i].attrs, elements[i].content);
    print_open_element(out, arena, "preset", "name:string*", "name");
    print_open_element(out, arena, "call", "name:string, block:string*, in:string, test:string",
                       "name, block, in, test");
    for (int i = 0; i < n; i++)
        print_op(out, arena, &ops[i]);
    fputs("</grammar>\n", out);
}
