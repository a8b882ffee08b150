// SPDX-License-Identifier: Apache-2.0
// A library against which a fake module is linked, and which is missing when the module is opened.
extern "C" int TaktFakeLibrary();
int TaktFakeLibrary() { return 0; }
