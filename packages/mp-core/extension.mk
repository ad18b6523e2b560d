# Compiles native/ of a package into a module of Python, for CPython's stable ABI: make, make dev. The Makefile of the
# package includes this file, and sets PACKAGE and FILES (what is installed), and where it needs them INCLUDES, DEFINES,
# LIBRARIES, GENERATED (sources in BUILD) and ARCHIVES. The sdists of other packages have a copy of this file.
#   BUILD=dir  where objects go      PYTHON=python  the interpreter      V=1  show the commands

CC     ?= cc
CFLAGS ?= -g
PYTHON ?= $(firstword $(wildcard ../../.venv/bin/python) python3)
BUILD  ?= ../../build/$(PACKAGE)
Q := $(if $(V),,@)

# The stable ABI of 3.11 is the first with the buffer protocol.
DEFINES += -DPy_LIMITED_API=0x030b0000 -DNDEBUG
# Hidden: the module exports its own init function. -fno-plt: without a procedure linkage table, each call into the
# interpreter is one jump less, 10 of the 100 ns of reduce_array. The errors are those of GCC 14 and of clang.
FLAGS := -Wall -fPIC -fvisibility=hidden -std=gnu11 -O2 -fwrapv -fno-plt -pthread -MMD -MP \
         -Werror=implicit-function-declaration -Werror=int-conversion -Werror=incompatible-pointer-types
# A path in quotes: an environment may lie in a folder with a space in its name.
PYTHON_INCLUDES := $(shell "$(PYTHON)" -c "import shlex, sysconfig as s; print(*{shlex.quote('-I' + s.get_path(p)) for p in ('include', 'platinclude')})")

MODULE  := $(filter %.so,$(FILES))
SOURCES := $(sort $(shell find native -name '*.c'))
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(GENERATED:%.c=$(BUILD)/%.o)

all: $(FILES:%=$(BUILD)/installed/%)

# In place, for an editable installation. Processes that run keep the old file.
dev: all
	$(Q)for file in $(FILES); do \
	    cp $(BUILD)/installed/$$file src/$(PACKAGE)/$$file.new && mv src/$(PACKAGE)/$$file.new src/$(PACKAGE)/$$file || exit 1; \
	done

$(BUILD)/installed/$(MODULE): $(OBJECTS) $(ARCHIVES)
	@echo "  LD  $@"
	@mkdir -p $(@D)
	$(Q)$(CC) -shared $(CFLAGS) -o $@ $^ $(LDFLAGS) $(LIBRARIES)

COMPILE = $(CC) $(CFLAGS) $(FLAGS) $(DEFINES) $(INCLUDES) $(PYTHON_INCLUDES) -c -o $@ $<
$(BUILD)/%.o: %.c
	@echo "  CC  $<"
	@mkdir -p $(@D)
	$(Q)$(COMPILE)

$(BUILD)/%.o: $(BUILD)/%.c
	@echo "  CC  $<"
	$(Q)$(COMPILE)

.PHONY: all dev
-include $(OBJECTS:.o=.d)
