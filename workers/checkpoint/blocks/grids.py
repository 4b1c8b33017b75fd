"""The grids of GGUF's IQ1, IQ2 and IQ3 formats: lists of points, whose numbers 8 or 4 weights of a block have.

A grid is a set of points in ascending order, the first number the least significant digit. So a bit for each possible
point describes it: the bitmaps of all grids, in the order of SHAPES, are compressed below.
"""

import zlib
from base64 import b85decode
from functools import cache

import torch
from torch import Tensor

from .bit_fields import BITS, fields

SHAPES = {  # how many values a number has, and the numbers of a point
    "IQ2_XXS": (3, 8),
    "IQ2_XS": (3, 8),
    "IQ2_S": (3, 8),
    "IQ3_XXS": (8, 4),
    "IQ3_S": (8, 4),
    "IQ1_S": (3, 8),
}
SAME = {"IQ1_M": "IQ1_S"}  # formats with another's grid
GRIDS = (*SHAPES, *SAME)
BITMAPS = (
    b"c-nPWO^h5z6@FDzp_+EEs+VrX;#AvShfX`PjBkWXwKXFd`_dCli@Q%Ipa^m1r`_y^ac_`f3j~5oyRnmTJ92^#$c!aN$|*z~K-_Y$z=sI04@k"
    b"Lyj6`@<)jd74IIWr4nR<WUd-c6nwRsria-62Xf-y({U>X9@V7>ulQl~zUfawg^QOxn30T3`MDXs^BRdg?FC82u)CMBvd9~i+e+F0R3oT6kJT"
    b"{<h-y=@5haAHIThu<$*bKSW%KM8l9oKe>6flg7Xdu`U)bTadD2pDWW4qk@UkP=e{>CDGquy^>iv})1-U1dsONEsv<oJ-Od#lGd(Vr0acunpS"
    b"*qb6$}*-D2=HelB4V*8|4jdUVCs9BKykY(`9+}CnA{FrKXTfy|oaOJ?#Mh{8ah_>crBdzraLwZE^Wmv}zeGT<9tu`L{IkFX!!_|Do_h&xr^V"
    b"RY^pXQS^oRC?bXOmPSTW3@36$XSrW<;T35Q>n<jM*Ye?%0=eKX47vaa<aNj5xx~@+n&B-XV%I$o#&X#^J=)Os9Qbc2C?_&Y|lme*?VkP&<df"
    b"GHIfAT}PbaIJL~{o5l%AUptu+8%6d$Z66R@{IN^f=GCPPV@xk4y+bUN?I(gFx8d3pO3R^X2<f7xHvYhyuDmv727Hs(plx}jDNpJa<k~=CSPi"
    b"W^en`DR65Z8M8d%vTqa107UgLsmYk8P=KsE}^`f;Q~PC{n<W+CZ%7i<=$%4smOO{3TNsfT7qZBuMBSr0Q-GUlp5T)WFndZUxE83uA4WN^4c*"
    b"ydyz<}Y%Kt&JsHOC9u47;H|L&0?D1lWq$-)O`3vxUOmPko&pecpmUDK#pfQ1K-C#6I2LilWCUc0lp0VQ8W!KTf^K~Ax$*T*%(D;#{<dTsew&"
    b"1MbF_hz<x9#@&K|RO&JGE$-$u!S%(34l*E3VG9$u_ok+S_+cAAM4W}t*#D`giZRxBeOijOX7-JS24*mY<vc^8bkhVJEs%>nC;)iJ(lXDo1O*"
    b"MFjFb$bW+2G1^Hw?guvb0Bt4rJg&Y?u=oGTCnpIt;B9{9np}odiK=wQ>j@c$+ec?BpFBx@lqgH3>N))Y5X?)=(N4%yNcI*BweLTXl!D)o?>c"
    b"ZqUfh1e_CoF!OQNz{G*aVc>_I74EX%O_x4pVno?$LK%^9LssXB^~?=dCb{ga?54<m@HoakqlUg*rEP{c8SWVVA?71{XR<%oW#6YdaHDbBIV9"
    b"c0J#@b49_ZQ-&?F#TnZk-wT!}p%af*{Fq`ZO>RLPYy5>Utj;u2PMR@QO~D5BtTFDwjIscS}$Q#)um5Nbk4tI+n0p=u4DS?1ov#D~P%%?U4gK"
    b"~RahBKS6*FtG}ZHYDh23j`?l(7&?rOz}KpY>-l8<q|J&B{krcO<IE!2|M2ksA0Z7bP1-DVzge}1d%<A)sRzsn9S534!Sq6*A&)80Aigpr?!6"
    b"4=ubLBFyo)Pcd;6)>H0~ah8^v|J9mrKEa<K>CQUQkS8%D-<U{E;PN}!QbzI!^__gPcUx_3{?6=>H{2LyOM8wZaUPNTR#YWVe6%)~b7TQC1Sl"
    b"tkRo85W-Hh%>&$}aeHgcL~04WEq^Vb?~bkBTG?z#F5Um0HMGEy<B5%E)i$6;F8aBEPb;#ZZ0?yvuYBTPJAXF>IF-MmxB?BPlD00J3MCprxXk"
    b"2y@A8S@Lr#Xd*px28;<qsKoH6A{Ev^oJFtr9|Gly;VCXG2~B)(1ozohhRh?o9@`d3R&SdMQsDIo8^Rqf($JgM){2?JyDQB$5P?g~XK)pVRl+"
    b"Qd8KELImET3yNvgya{yX9>ui6A%HD=Hct;DRF!}fB2pOj27LL}`r%4{TqQFoP6{RVcvuHy7DS008Ojq&$ZirG*bW5?i#M1R|7{r#D)lOR74?"
    b"A7$_R7}3McwJS^S45(My(}ozcyc1-H7(Wr7>Kg|LQ>D~x89rW5$tKNeWR>}Myu_4kp*a8off~UMUmi2u&2(Q&BcVg^g*qv7a-YLw2gT5t`Kn"
    b"y7%OgLwJ4PL8}WzbLVa}SN^_@u`3Fx9miNn}_oC%Te?5AQMi8k*we(6VAUXfH<{ObZ*}!FexvgRm5kwf4YBbrN?bU)FU%ae#OEp6njS|1e0-"
    b"A_>i?XQC;Rck=rH0106S0TiPm2j&A`oE>XQy}>d9j45OvLrm0mqbM2cA;ZCZM){SKWyh%j@mpdr*3U#u42`I-V=)gZGm51GT@54nBT+fB&_`"
    b"HT?bk{c8MNqR#E=xJpE;KKxS?HShkq{>Q@fU$U5kD(d~FiI;Uzp7E9s?k)fOq^VCfqVnQ{2Cko>&po|y@bI4}7pH#q;73oM{_Dr@fAYiS!*B"
    b"oRtDn99!qctCf3G6hJ~+DDio1&=<(<!#JCA=-u!}EU`gGylI0=}tc+_qIEfeo8^~dtcn`I0Qyit4^N+IC8RomXDZ#}5$k7)6oU!MB&-N&+&r"
    b"`m^c_?MduJW~fH$aPh=UtdONcI#1b465cLy^Oa9tk^rH-Q`xr?N7ZeyUV;5hBideS~n5SP|=82tJm(eZ2`(FAAJ~Yi?Oj9RVqYAz3z!NNeb|"
    b"c)%F6c!$)dfddF}J+NQ1E+oxWFA<CllViCiwIgRQEN8)>;T3)z|Dc|__omRaPU;2H0`jf(=$b?rfB9Um@o@@`ATXiFZRCN_WdDQK)XDNE?i*"
    b"UZB;wH#1jk{guNa^yOPfa&rEN`g}8VcpPQT#Xn|H8y@V?iy#`Hq;!o))-*DO2N+{14W->I4"
)


@cache
def grid_of(name: str) -> Tensor:
    """The points of the format `name`, [points, 8 or 4] uint8: of each number its place among its values."""
    name, bitmaps = SAME.get(name, name), bytearray(zlib.decompress(b85decode(BITMAPS)))
    for each, (values, size) in SHAPES.items():
        num_bytes = -(-(values**size) // 8)
        if each == name:
            bits = fields(torch.frombuffer(bitmaps[:num_bytes], dtype=torch.uint8).unsqueeze(1), BITS, 1, 1)
            return (bits.flatten().nonzero() // values ** torch.arange(size) % values).byte()
        bitmaps = bitmaps[num_bytes:]
    raise KeyError(name)
