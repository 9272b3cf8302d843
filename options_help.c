/* options_help.c - the option table as a page, and as completions of bash and zsh. */
#include <string.h>

#include "options.h"

/* ---- --help ---- */

static const char usage[] =
    "usage: mpplan MODEL.xml [--gpus N] [--cluster NAME] [-o DIR]\n"
    "Plan how to train MODEL.xml on N devices; write the trainer and its plan to DIR.\n";

void mpp_options_help(FILE *out)
{
    const char *group = "";
    fputs(usage, out);
    for (int i = 0; mpp_options_row(i); i++) {
        const struct mpp_option *o = mpp_options_row(i);
        char left[64];
        if (strcmp(group, o->group) != 0)
            fprintf(out, "%s\n", o->group);
        group = o->group;
        snprintf(left, sizeof left, "%s%s%s%s%s", o->name, o->alias && !o->value ? ", " : "", o->alias && !o->value ? o->alias : "",
                 o->value ? " " : "", o->value ? o->value : "");
        fprintf(out, o->help ? "  %-22s %s\n" : "  %s\n", left, o->help);
    }
}

/* ---- completions ---- */

static bool is_words(const struct mpp_option *o)
{
    static const char *const kinds[] = {"file", "dir", "cluster", "preset", "define", "fix"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (o->complete && strcmp(o->complete, kinds[i]) == 0)
            return false;
    return o->complete != NULL;
}

/* TEXT with each FROM as TO. */
static void put(FILE *out, const char *text, char from, const char *to)
{
    for (; *text; text++)
        if (*text == from)
            fputs(to, out);
        else
            fputc(*text, out);
}

static void put_names(FILE *out, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        fprintf(out, "%s%s", i ? " " : "", names[i]);
}

/* The pins of --fix (docs/plan.md). */
static const char pins[] = "dp= tp= pp= interleave= schedule=1f1b schedule=gpipe schedule=interleaved mesh= recompute=none "
                           "recompute=selective recompute=full zero=0 zero=1 zero=2 zero=3 sequence_parallel=true "
                           "sequence_parallel=false vocab_parallel=true vocab_parallel=false micro_batch= micro_batches= shard:";

/* What both shells share: names that the model file on the command line declares. */
static const char from_model[] =
    "_mpplan_model() {  # the value of attribute name= of each element $1 of the model file among the words so far\n"
    "    local word\n"
    "    for word in \"${@:2}\"; do\n"
    "        case $word in\n"
    "        *.xml) [ -f \"$word\" ] && sed -n 's/.*<'\"$1\"'[^>]* name=\"\\([^\"]*\\)\".*/\\1/p' \"$word\";;\n"
    "        esac\n"
    "    done\n"
    "}\n";

static void bash(FILE *out, const char *const *clusters)
{
    fprintf(out, "# bash completion of mpplan; written by mpplan --completion bash\n%s"
                 "_mpplan() {\n"
                 "    local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
                 "    if [ \"$now\" = = ]; then now=; fi\n"
                 "    if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
                 "    COMPREPLY=()\n"
                 "    case $before in\n", from_model);
    for (int i = 0; mpp_options_row(i); i++) {
        const struct mpp_option *o = mpp_options_row(i);
        if (!o->value)
            continue;
        fprintf(out, "    %s%s%s) ", o->name, o->alias ? "|" : "", o->alias ? o->alias : "");
        if (is_words(o)) {
            fputs("mapfile -t COMPREPLY < <(compgen -W \"", out);
            put(out, o->complete, '|', " ");
            fputs("\" -- \"$now\")", out);
        } else if (!o->complete) {
            fputs(":", out);
        } else if (!strcmp(o->complete, "cluster")) {
            fputs("mapfile -t COMPREPLY < <(compgen -W \"", out);
            put_names(out, clusters);
            fputs("\" -- \"$now\"; compgen -f -X '!*.xml' -- \"$now\")", out);
        } else if (!strcmp(o->complete, "preset")) {
            fputs("mapfile -t COMPREPLY < <(compgen -W \"$(_mpplan_model preset \"${COMP_WORDS[@]}\")\" -- \"$now\")", out);
        } else if (!strcmp(o->complete, "define")) {
            fputs("mapfile -t COMPREPLY < <(compgen -S = -W \"$(_mpplan_model dim \"${COMP_WORDS[@]}\"; _mpplan_model param "
                  "\"${COMP_WORDS[@]}\")\" -- \"$now\"); compopt -o nospace", out);
        } else if (!strcmp(o->complete, "fix")) {
            fprintf(out, "mapfile -t COMPREPLY < <(compgen -P \"${now%%\"${now##*,}\"}\" -W \"%s\" -- \"${now##*,}\"); compopt -o nospace", pins);
        } else {
            fprintf(out, "mapfile -t COMPREPLY < <(compgen -%c -- \"$now\"); compopt -o filenames", o->complete[0]);
        }
        fputs("; return;;\n", out);
    }
    fputs("    esac\n"
          "    if [[ $now == -* ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"", out);
    for (int i = 0; mpp_options_row(i); i++) {
        const struct mpp_option *o = mpp_options_row(i);
        fprintf(out, "%s%s%s%s", i ? " " : "", o->name, o->alias ? " " : "", o->alias ? o->alias : "");
    }
    fputs("\" -- \"$now\")\n"
          "    else\n"
          "        mapfile -t COMPREPLY < <(compgen -f -X '!*.xml' -- \"$now\"; compgen -d -- \"$now\")\n"
          "        compopt -o filenames\n"
          "    fi\n"
          "}\n"
          "complete -F _mpplan mpplan\n", out);
}

/* What zsh does for the value of O. */
static void zsh_action(FILE *out, const struct mpp_option *o, const char *const *clusters)
{
    if (is_words(o)) {
        fputs("(", out);
        put(out, o->complete, '|', " ");
        fputs(")", out);
    } else if (!o->complete) {
        fputs(" ", out);
    } else if (!strcmp(o->complete, "cluster")) {
        fputs("{_alternative \"names\\:cluster\\:(", out);
        put_names(out, clusters);
        fputs(")\" \"files\\:file\\:_files -g \\*.xml\"}", out);
    } else if (!strcmp(o->complete, "preset")) {
        fputs("{compadd -- ${(f)\"$(_mpplan_model preset $words)\"}}", out);
    } else if (!strcmp(o->complete, "define")) {
        fputs("{compadd -S = -- ${(f)\"$(_mpplan_model dim $words; _mpplan_model param $words)\"}}", out);
    } else if (!strcmp(o->complete, "fix")) {
        fprintf(out, "{compset -P \"*,\"; compadd -S \"\" -- %s}", pins);
    } else {
        fputs(o->complete[0] == 'd' ? "_files -/" : "_files", out);
    }
}

static void zsh(FILE *out, const char *const *clusters)
{
    fprintf(out, "#compdef mpplan\n# zsh completion of mpplan; written by mpplan --completion zsh\n%s_mpplan() {\n    _arguments \\\n", from_model);
    for (int i = 0; mpp_options_row(i); i++) {
        const struct mpp_option *o = mpp_options_row(i);
        for (int k = 0; k < 2; k++) {
            const char *name = k ? o->alias : o->name;
            if (!name)
                continue;
            fprintf(out, "        '*%s%s[", name, o->value ? (name[1] == '-' ? "=" : "+") : "");
            put(out, o->help ? o->help : o->name + strspn(o->name, "-"), '\'', "");
            fputs("]", out);
            if (o->value) {
                fputs(":", out);
                put(out, o->value, '=', " ");
                fputs(":", out);
                zsh_action(out, o, clusters);
            }
            fputs("' \\\n", out);
        }
    }
    fputs("        '*:model or plan directory:_files'\n}\n"
          "if [ \"$funcstack[1]\" = _mpplan ]; then _mpplan \"$@\"; else compdef _mpplan mpplan; fi\n", out);
}

void mpp_options_completion(FILE *out, const char *shell, const char *const *clusters)
{
    (strcmp(shell, "zsh") == 0 ? zsh : bash)(out, clusters);
}
